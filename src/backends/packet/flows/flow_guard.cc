#include "backends/packet/flows/flow_guard.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "backends/packet/flows/bpf.h"
#include "backends/packet/flows/shared_interface.h"
#include "backends/packet/flows/steering_program.h"
#include "backends/packet/libc.h"
#include "os/net/rights_message.h"

namespace bypass::packet {
namespace {

// The contents of a message in a handover. The descriptors of the table and the link go with it.
struct Kept {
  int interface = 0;
  MacAddress mac;
};

// One packet that carries a Kept and its two descriptors.
class Message {
 public:
  bool send(int socket, int table, int link) {
    message_.pass(std::array{table, link});
    return libc.sendmsg(socket, &message_.header(), MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof kept);
  }

  // Reads the first message and leaves it in the queue. False with errno. EAGAIN: there is no message. EMFILE: this
  // process has no numbers left for the message's descriptors.
  bool look(int socket, Descriptor& table, Descriptor& link) {
    message_.expect();
    if (libc.recvmsg(socket, &message_.header(), MSG_DONTWAIT | MSG_PEEK | MSG_CMSG_CLOEXEC) < 0) return false;
    const auto [first, second] = message_.received();
    table = Descriptor(first);
    link = Descriptor(second);
    errno = EMFILE;
    return !message_.lacks_descriptors();
  }

  Kept kept;

 private:
  os::RightsMessage<2> message_{&kept, sizeof kept};
};

}  // namespace

bool FlowGuard::hold(const Handover& handover, int interface, const MacAddress& mac, std::span<const FlowSpec> flows,
                     std::string& problem) {
  if (!take_over(handover, interface, mac)) {
    if (errno == EMFILE) {
      problem = "this process has no descriptor left (ulimit -n)";
      return false;
    }
    if (!make(handover, interface, mac, problem)) return false;
  }
  know(flows);
  return true;
}

// False with errno. EMFILE: there may be a guard to take over.
bool FlowGuard::take_over(const Handover& handover, int interface, const MacAddress& mac) {
  for (;;) {
    Message message;
    Descriptor table, link;
    if (!message.look(handover.look, table, link)) return false;
    if (message.kept.interface == interface && message.kept.mac == mac && link.is_open()) {
      table_ = FlowTable(std::move(table));
      link_ = std::move(link);
      return true;
    }
    char one = 0;  // the message is of another interface that had this one's name; nobody needs it any more
    if (libc.recv(handover.look, &one, sizeof one, MSG_DONTWAIT) < 0) return false;
  }
}

bool FlowGuard::make(const Handover& handover, int interface, const MacAddress& mac, std::string& problem) {
  FlowTable table;
  Descriptor program, link;
  if (table.create()) program = load_program(kIngress, ingress_filter({table.descriptor(), mac}));
  if (program.is_open()) link = link_program(kIngress, program.get(), interface, 0);
  if (!link.is_open()) {
    const bool no_tcx = program.is_open() && errno == EINVAL;
    problem = no_tcx ? "the kernel has no TCX (Linux 6.6 and later have it)" : sharing_problem(errno);
    return false;
  }
  Message message;
  message.kept = {interface, mac};
  if (!message.send(handover.put, table.descriptor(), link.get())) {
    problem = std::string("it cannot be passed on: ") + std::strerror(errno);
    return false;
  }
  table_ = std::move(table);
  link_ = std::move(link);
  return true;
}

void FlowGuard::know(std::span<const FlowSpec> flows) {
  std::set<FlowKey> gone;
  for (const FlowKey& key : table_.keys()) gone.insert(key);
  for (const FlowSpec& flow : flows) {
    const auto key = key_of(flow);
    if (key && gone.erase(*key) == 0) keep(flow, true);
  }
  for (const FlowKey& key : gone) table_.remove(key);
}

void FlowGuard::keep(const FlowSpec& flow, bool add) {
  const auto key = key_of(flow);
  if (!is_open() || !key || flow.protocol != IPPROTO_TCP) return;
  if (!add) {
    (void)table_.remove(*key);
    // EEXIST: another user of the table has added the flow
  } else if (!table_.add(*key) && errno != EEXIST && !std::exchange(said_, true)) {
    const std::string text = std::string("a family's flow is not kept from the kernel: ") + std::strerror(errno);
    host->log(LogLevel::kWarn, text.c_str());
  }
}

}  // namespace bypass::packet
