#include "runtime/routing/policy.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "config/config.h"
#include "config/port_check.h"
#include "config/port_use.h"
#include "fastpath/shm/rendezvous/descriptor.h"
#include "observe/region.h"
#include "os/log/log.h"
#include "os/net/address.h"
#include "os/own/in_handler.h"
#include "runtime/family/keeper/keeper.h"
#include "runtime/family/keeper/notice.h"
#include "runtime/family/pump/relay_process.h"
#include "runtime/high_numbers.h"
#include "runtime/host.h"
#include "runtime/ports/open_ports.h"
#include "runtime/ports/port_set.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/routing/decide.h"
#include "socket/policy.h"
#include "socket/shared/local.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

/// Acts on a verdict. For "bypass" it opens the ports; for anything else it notes the reason.
socket::Decision act_on(const Verdict& verdict, int fd, std::uint8_t protocol, const Endpoint& address, bool open_now) {
  Process& p = *g_process;
  if (verdict.action == RuleAction::kBypass && protocol == IPPROTO_TCP && has_relay()) {
    // A wildcard's listener is the kernel's: a relay has one address.
    p.region.why(address.address.is_any() ? Reason::kPortUnavailable : Reason::kRelayed, fd, protocol, address, "");
    return address.address.is_any() ? socket::Decision::kKernel : socket::Decision::kRelay;
  }
  if (verdict.action == RuleAction::kBypass) {
    if (protocol == IPPROTO_TCP) begin_keeper(p);
    if (!open_now && !p.ports.failed()) return socket::Decision::kBypass;
    if (open_ports(p) && p.ports.usable(verdict.port)) return socket::Decision::kBypass;
    if (!p.ports.opened() && socket::is_in_handler()) {
      p.region.why(Reason::kInHandler, fd, protocol, address, "it found the ports not open yet");
      return socket::Decision::kKernel;
    }
    if (PortSet::lent(p.shard)) {
      p.region.why(Reason::kPortLent, fd, protocol, address, "");
      return socket::Decision::kKernel;
    }
    const std::string* problem = nullptr;
    if (verdict.port < p.ports.entries().size()) problem = &p.ports.entries()[verdict.port].problem;
    p.region.why(Reason::kPortUnavailable, fd, protocol, address, problem != nullptr ? problem->c_str() : "");
    return socket::Decision::kKernel;
  }
  // For these reasons, it is decided later whether shared memory carries the socket. "kernel" is no news until then.
  const bool open_question = verdict.reason == Reason::kLoopback || verdict.reason == Reason::kNoPortConfigured;
  if (!open_question || !p.local_ports.is_open()) p.region.why(verdict.reason, fd, protocol, address, verdict.detail);
  return verdict.action == RuleAction::kFail ? socket::Decision::kFail : socket::Decision::kKernel;
}

/// Reads what the kernel has told of its addresses and routes, before a decision that needs them. Where the progress
/// thread runs, that thread reads it.
void hear_kernel() {
  if (!g_process->progress.runs()) g_process->ports.hear_kernel();
}

RuleProto proto_of(int type) {
  return type == SOCK_DGRAM ? RuleProto::kUdp : RuleProto::kTcp;
}

std::uint8_t number_of(int type) {
  return type == SOCK_DGRAM ? IPPROTO_UDP : IPPROTO_TCP;
}

/// Whether any stream has been bound to a port's interface. Until then nobody is asked whether a stream is.
std::atomic<bool> any_is_bound{false};

/// The verdict for a stream that SO_BINDTODEVICE may have bound to an interface: another one's port does not have it. A
/// wildcard's listener is on all ports, so there must be no other.
Verdict for_device(Verdict verdict, int fd, bool is_wildcard) {
  if (verdict.action != RuleAction::kBypass || !any_is_bound.load(std::memory_order_relaxed)) return verdict;
  int interface = 0;
  socklen_t length = sizeof interface;
  const Process& p = *g_process;
  if (socket::kernel->getsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &interface, &length) != 0 || interface == 0)
    return verdict;
  const bool is_elsewhere = is_wildcard && p.config.ports.size() > 1;
  if (!is_elsewhere && p.decider.interface_of(verdict.port) == interface) return verdict;
  return {RuleAction::kKernel, Reason::kOptionUnsupported, "setsockopt SO_BINDTODEVICE", 0};
}

socket::Decision decide_connect(int fd, int type, const sockaddr* /*local*/, const sockaddr* remote) {
  const auto endpoint = socket::endpoint_of(remote, sizeof(sockaddr_in6));
  if (!endpoint) return socket::Decision::kKernel;
  hear_kernel();
  const Verdict verdict = for_device(g_process->decider.connect(proto_of(type), *endpoint), fd, false);
  return act_on(verdict, fd, number_of(type), *endpoint, true);
}

/// Warns that another process has the port, as soon as the program binds an address of that port. Else a process that
/// has no relative with the port would learn it only when it opens the port, from a call that fails.
void report_if_in_use(Process& p, std::size_t index, int fd, std::uint8_t protocol, const Endpoint& address) {
  const bool is_tried = p.ports.opened() || p.ports.failed() || PortSet::owner_lives(p.shard) || PortSet::lent(p.shard);
  if (is_tried || index >= p.config.ports.size() || socket::is_in_handler() || p.told_in_use.exchange(true)) return;
  const PortConfig& port = p.config.ports[index];
  await_keepers_end(p.config);
  const std::string use = port_in_use(p.config, port);
  if (use.empty()) return;
  const std::string text =
      named_problem(p.config, port, use) +
      ", and it is no fork of this process; while it has the port, this process has no connections by that port";
  BYPASS_LOG_WARN("%s", text.c_str());
  p.region.why(Reason::kPortUnavailable, fd, protocol, address, text.c_str());
}

// A listener does not open the ports by itself: a daemon listens and forks, and its parent is gone then. The progress
// thread opens them a little later, or the first accept or wait does.
socket::Decision decide_listen(int fd, int type, const sockaddr* local) {
  const auto endpoint = socket::endpoint_of(local, sizeof(sockaddr_in6));
  if (!endpoint) return socket::Decision::kKernel;
  hear_kernel();
  const bool is_wildcard = endpoint->address.is_any();
  const Verdict verdict = for_device(g_process->decider.listen(proto_of(type), *endpoint), fd, is_wildcard);
  if (verdict.action == RuleAction::kBypass && !is_wildcard)
    report_if_in_use(*g_process, verdict.port, fd, number_of(type), *endpoint);
  const auto decision = act_on(verdict, fd, number_of(type), *endpoint, false);
  if (decision == socket::Decision::kBypass) g_process->progress.start();
  return decision;
}

bool is_port_on(int interface) {
  const bool is = g_process->decider.is_port_on(interface);
  if (is) any_is_bound = true;
  return is;
}

bool address_is_taken(const sockaddr* local) {
  const auto endpoint = socket::endpoint_of(local, sizeof(sockaddr_in6));
  const Process& p = *g_process;
  if (!endpoint || !p.ports.failed()) return false;
  const Verdict verdict = p.decider.listen(RuleProto::kTcp, *endpoint);
  return verdict.action == RuleAction::kBypass && verdict.port < p.ports.entries().size() &&
         p.ports.entries()[verdict.port].taken;
}

socket::Decision routes_to(const sockaddr* remote) {
  const auto endpoint = socket::endpoint_of(remote, sizeof(sockaddr_in6));
  if (!endpoint) return socket::Decision::kKernel;
  hear_kernel();
  const Verdict verdict = g_process->decider.connect(RuleProto::kUdp, *endpoint);
  // datagrams have too many peers to note each
  if (verdict.action == RuleAction::kKernel) return socket::Decision::kKernel;
  return act_on(verdict, -1, IPPROTO_UDP, *endpoint, true);
}

/// Whether shared memory may carry a connection to `address`. What a user's rule gives to the kernel stays there.
bool may_be_local(const sockaddr* address) {
  const auto endpoint = socket::endpoint_of(address, sizeof(sockaddr_in6));
  if (!endpoint) return false;
  const Verdict verdict = g_process->decider.connect(RuleProto::kTcp, *endpoint);
  return verdict.reason != Reason::kRuleKernel && verdict.reason != Reason::kRuleFail;
}

}  // namespace

void fill_local_policy(Process& p) {
  fastpath::shm::descriptor_keeper = {own_high, own_passing, [](int fd) { own_descriptor(fd, false); }};
  open_local_ports(p);
  if (!p.local_ports.is_open()) return;
  socket::LocalPolicy& policy = socket::local_policy;
  policy.directory = &p.local_ports;
  policy.may_be_local = may_be_local;
  policy.most_links = most_own_descriptors;
  policy.need_progress = [] { return g_process->progress.start_or_wake(); };
  policy.call_progress = [] { g_process->progress.look_now(); };
}

void fill_policy(const Config& config) {
  socket::Policy& policy = socket::policy;
  policy.decide_connect = decide_connect;
  policy.decide_listen = decide_listen;
  policy.routes_to = routes_to;
  policy.is_port_on = is_port_on;
  policy.is_taken = address_is_taken;
  policy.open_wire = open_wire;
  policy.open_wire_for_wait = open_wire_for_wait;
  if (!config.ports.empty()) policy.ask_for_wire = ask_for_wire;
  policy.record_why = record_why;
  policy.record_why_at = record_why;
  policy.own_descriptor = own_high;
  policy.own_copy = own_copy;
  policy.disown_descriptor = [](int fd) { own_descriptor(fd, false); };
  policy.protect_descriptor = [](int fd) { own_descriptor(fd, true); };
}

}  // namespace bypass::runtime
