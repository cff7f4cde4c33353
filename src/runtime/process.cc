#include "runtime/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>

#include "config/config.h"
#include "config/port_check.h"
#include "config/port_use.h"
#include "config/settings.h"
#include "fastpath/link/peer_links.h"
#include "observe/region.h"
#include "os/kernel.h"
#include "os/log/environment_copy.h"
#include "os/log/log.h"
#include "os/log/run_dir.h"
#include "os/net/address.h"
#include "os/net/address_text.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_calls.h"
#include "os/own/own_work.h"
#include "runtime/crash/crash.h"
#include "runtime/family/arena.h"
#include "runtime/family/spare.h"
#include "runtime/high_numbers.h"
#include "runtime/host.h"
#include "runtime/life/before_start.h"
#include "runtime/links/link_words.h"
#include "runtime/links/place_number.h"
#include "runtime/ports/port_addresses.h"
#include "runtime/ports/port_set.h"
#include "runtime/process_graph.h"
#include "runtime/progress/progress.h"
#include "runtime/progress/publish.h"
#include "runtime/routing/decide.h"
#include "socket/api.h"
#include "socket/family/kin.h"
#include "socket/family/takers.h"
#include "socket/policy.h"
#include "socket/shard.h"
#include "socket/shared/local.h"
#include "socket/socket.h"
#include "socket/wait/wait.h"
#include "stack/stack.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

Process* g_process = nullptr;  // the graph; null until start()
bool g_left = false;           // leave() has been called
// a child of a process that had started, and it could share nothing: its sockets are the kernel's
bool g_forked_child = false;
thread_local socket::Fork fork_under_way;
thread_local bool holds_ports = false;  // this thread holds the ports for a fork

tcp::EngineConfig engine_config(const Config& config) {
  tcp::EngineConfig tcp;
  tcp.rto_min = config.tcp.rto_min;
  tcp.rto_max = config.tcp.rto_max;
  tcp.delayed_ack = config.tcp.delayed_ack;
  tcp.time_wait = config.tcp.time_wait;
  tcp.syn_retries = config.tcp.syn_retries;
  tcp.syn_queue = config.tcp.syn_queue;
  tcp.syn_cookies = config.tcp.syn_cookies;
  tcp.orphan_retries = config.tcp.orphan_retries;
  tcp.max_orphans = config.tcp.max_orphans;
  tcp.fin_wait2 = config.tcp.fin_wait2;
  tcp.retries2 = config.tcp.retries2;
  tcp.initial_window = config.tcp.initial_window;
  tcp.send_buffer = static_cast<std::uint32_t>(config.tcp.send_buffer);
  tcp.receive_buffer = static_cast<std::uint32_t>(config.tcp.receive_buffer);
  tcp.congestion = config.tcp.congestion == Congestion::kNewReno ? tcp::Congestion::kNewReno : tcp::Congestion::kCubic;
  return tcp;
}

StackConfig stack_config(const Config& config) {
  StackConfig stack;
  stack.tcp = engine_config(config);
  stack.tso = config.tso;
  stack.checksum_offload = config.checksum_offload;
  stack.fragment_memory = static_cast<std::uint32_t>(config.fragment_memory);
  return stack;
}

// --- What the socket layer asks ---------------------------------------------------------------------------

bool is_inside_library() {
  return socket::thread_signals.in_lock > 0 || thread_path.depth > 0;
}

const char* what_is_done() {
  return socket::thread_signals.in_lock > 0 ? "inside the stack, with the shard's lock held" : "inside a driver";
}

void install_crash_reports() {
  crash::Hooks hooks;
  hooks.inside = is_inside_library;
  hooks.doing = what_is_done;
  hooks.sigaction = reinterpret_cast<decltype(hooks.sigaction)>(backend_host().libc("sigaction"));
  crash::install(hooks);
}

/// Reports the outcome when every port has been tried. Any thread may be the one that tried: also the progress thread.
void after_opening(const PortSet& ports) {
  const auto is_there = [](const PortSet::Entry& entry) { return entry.port != nullptr; };
  const auto there = std::count_if(ports.entries().begin(), ports.entries().end(), is_there);
  const bool all = static_cast<std::size_t>(there) == ports.entries().size(), any = there != 0;
  BYPASS_LOG_INFO("open: %td of %zu port(s)", there, ports.entries().size());
  for (const PortSet::Entry& entry : ports.entries())
    if (entry.port == nullptr)
      report_problem(Reason::kPortUnavailable, entry.problem,
                     any ? "sockets to its addresses are the kernel's" : kOnKernelSockets);
  bool asked_too_much = !all;
  for (const PortSet::Entry& entry : ports.entries()) {
    if (entry.port == nullptr || entry.links_problem.empty()) continue;
    if (g_process->config.rdma == RdmaMode::kDevice) {
      const std::string text = "BYPASS_RDMA=" + g_process->config.rdma_device + ": " + entry.links_problem;
      report_problem(Reason::kNoRdma, text, "connections to accelerated peers stay with TCP");
      asked_too_much = true;
    } else {
      BYPASS_LOG_INFO("no RDMA connections: %s", entry.links_problem.c_str());
      g_process->region.why(Reason::kNoRdma, -1, IPPROTO_TCP, {}, entry.links_problem.c_str());
    }
  }
  if (asked_too_much) end_if_strict();
  if (any) install_crash_reports();
}

}  // namespace

bool open_ports(Process& p) {
  if (p.ports.opened()) [[likely]]
    return true;
  if (!p.ports.open(p.shard)) return false;
  { const socket::Guard stopped_here(p.shard); }  // this thread stops here if the process has ended meanwhile
  // A progress thread that was started for a listener may sleep as one without ports does. It is woken.
  if (!p.progress.start_or_wake())
    BYPASS_LOG_WARN("no progress thread: the stack moves only inside the program's calls");
  return true;
}

namespace {

/// Acts on a verdict. For "bypass" it opens the ports; for anything else it notes the reason.
socket::Decision act_on(const Verdict& verdict, int fd, std::uint8_t protocol, const Endpoint& address, bool open_now) {
  Process& p = *g_process;
  if (verdict.action == RuleAction::kBypass) {
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

socket::Decision decide_connect(int fd, int type, const sockaddr* /*local*/, const sockaddr* remote) {
  const auto endpoint = socket::endpoint_of(remote, sizeof(sockaddr_in6));
  if (!endpoint) return socket::Decision::kKernel;
  hear_kernel();
  return act_on(g_process->decider.connect(proto_of(type), *endpoint), fd, number_of(type), *endpoint, true);
}

/// Warns that another process has the port, as soon as the program binds an address of that port. Else a process that
/// has no relative with the port would learn it only when it opens the port, from a call that fails.
void tell_if_in_use(Process& p, std::size_t index, int fd, std::uint8_t protocol, const Endpoint& address) {
  const bool is_tried = p.ports.opened() || p.ports.failed() || PortSet::owner_lives(p.shard) || PortSet::lent(p.shard);
  if (is_tried || index >= p.config.ports.size() || socket::is_in_handler() || p.told_in_use.exchange(true)) return;
  const PortConfig& port = p.config.ports[index];
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
  const Verdict verdict = g_process->decider.listen(proto_of(type), *endpoint);
  if (verdict.action == RuleAction::kBypass && !endpoint->address.is_any())
    tell_if_in_use(*g_process, verdict.port, fd, number_of(type), *endpoint);
  const auto decision = act_on(verdict, fd, number_of(type), *endpoint, false);
  if (decision == socket::Decision::kBypass) g_process->progress.start();
  return decision;
}

bool address_is_taken(const sockaddr* local) {
  const auto endpoint = socket::endpoint_of(local, sizeof(sockaddr_in6));
  const Process& p = *g_process;
  if (!endpoint || !p.ports.failed()) return false;
  const Verdict verdict = p.decider.listen(RuleProto::kTcp, *endpoint);
  return verdict.action == RuleAction::kBypass && verdict.port < p.ports.entries().size() &&
         p.ports.entries()[verdict.port].taken;
}

bool need_wire() {
  if (g_process->config.ports.empty()) return true;  // connections within the host need no port
  return open_ports(*g_process);
}

void await_wire() {
  if (need_wire() || !PortSet::lent(g_process->shard)) [[likely]]
    return;
  if (!socket::has_source_on_wire()) return;
  spare::recall();
  g_process->progress.look_now();
}

/// Asks for the ports where this process needs them. Ports that their owner has left belong to nobody until then.
void want_wire() {
  Process& p = *g_process;
  const bool left = p.ports.following() && p.shard.wires().owner_slot() == socket::kNoSlot;
  if (!p.ports.opened() || left) p.progress.want_ports();
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

namespace {

/// Whether the descriptors for connections within the host would lie among the program's numbers. Those are few here,
/// and the program would miss each.
bool takes_scarce_numbers(const fastpath::shm::Directory& directory) {
  constexpr rlim_t kFew = 512;
  const rlim_t limit = soft_limit();
  return limit <= kFew && static_cast<rlim_t>(directory.folder()) < limit;
}

}  // namespace

/// Without a run directory no connection is local: no process could find another.
void open_local_ports(Process& p) {
  if (!p.config.local) return;
  std::string problem;
  const int folder = open_run_dir(run_dir_path(p.config.run_dir), true, problem);
  // The report of the stats file has said already that the directory itself cannot be used.
  bool quiet = folder < 0 || p.config.asks_for_nothing();
  if (folder >= 0) {
    const char* why = "";
    auto opened = fastpath::shm::Directory::open(folder, &why);
    if (opened.ok()) p.local_ports = std::move(opened.value);
    if (!opened.ok()) problem = run_dir_path(p.config.run_dir) + "/local-ports cannot be used: " + why;
    if (!opened.ok() && !p.config.run_dir.empty() && !may_write(folder)) quiet = false;
    if (p.local_ports.is_open() && takes_scarce_numbers(p.local_ports)) {
      p.local_ports = {};
      problem =
          "descriptors of its own would be among the few of the program's (RLIMIT_NOFILE); raise the hard limit "
          "(ulimit -Hn) above the soft one";
    }
    p.place = place_number(folder);
    socket::kernel->close(folder);
  }
  if (p.local_ports.is_open()) return;
  BYPASS_LOG(quiet ? LogLevel::kInfo : LogLevel::kWarn, "no shared memory within the host: %s", problem.c_str());
  if (folder >= 0) p.region.why(Reason::kNoSharedMemory, -1, IPPROTO_TCP, {}, problem.c_str());
}

socket::Budgets budgets_of(const Config& config) {
  const auto bound = [](Duration time) { return time == kForever ? Duration(-1) : time; };
  socket::Budgets budgets;
  budgets.spin = bound(config.spin);
  budgets.yield = bound(config.yield);
  budgets.kernel_poll = config.kernel_poll;
  budgets.send_buffer = static_cast<std::uint32_t>(config.tcp.send_buffer);
  budgets.receive_buffer = static_cast<std::uint32_t>(config.tcp.receive_buffer);
  budgets.local_after = static_cast<std::uint32_t>(config.local_after);
  return budgets;
}

void end_sharing() {
  g_forked_child = true;
  socket::process_shard = nullptr;
}

namespace {

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
  policy.is_taken = address_is_taken;
  policy.need_wire = need_wire;
  policy.await_wire = await_wire;
  if (!config.ports.empty()) policy.tell_on_wire = want_wire;
  policy.record_why = record_why;
  policy.record_why_at = record_why;
  policy.own_descriptor = own_high;
  policy.own_copy = own_copy;
  policy.disown_descriptor = [](int fd) { own_descriptor(fd, false); };
}

/// False: the process stays with the kernel's sockets. Each problem has been reported.
bool check_ports(PortSet& ports) {
  std::vector<PortSet::Problem> problems;
  if (ports.check(problems)) return true;
  for (const PortSet::Problem& problem : problems) report_problem(problem.reason, problem.text);
  end_if_strict();
  return false;
}

std::uint64_t random_number() {
  std::uint64_t value = 0;
  return os::fill_random(&value, sizeof value) ? value : 0;
}

/// Called with the shard's lock held, a few times a second at most.
void note_link(const fastpath::PeerLink& link) {
  const LinkWord word = word_of(link, g_process->config, g_process->ports, g_process->place);
  BYPASS_LOG_INFO("%s", word.log.data());
  if (word.reason != Reason::kNone)
    g_process->region.why(word.reason, -1, IPPROTO_TCP, {link.peer, 0}, word.detail.data());
}

/// Where there can be no links, a connection only has the reason noted for `bypass why`.
void tell_no_links(void*, const tcp::Tcb& tcb) {
  constexpr auto kWhy = fastpath::Reason::kNotHere;
  const std::uint16_t port = tcb.path.port;
  for (const fastpath::Mover mover : {fastpath::Mover::kRc, fastpath::Mover::kShm})
    if (g_process->told.add({{}, port, mover, kWhy})) note_link(fastpath::refused_link(mover, {}, port, kWhy));
}
constexpr Hooks kNoLinks{.plain = tell_no_links};

/// Called before any connection is made: each connection is asked whether it may be framed.
void prepare_links(Process& p, Stack& stack, Memory& memory) {
  const auto wants = [&p](const PortConfig& port) { return p.config.wants_links(port); };
  const bool rdma = std::any_of(p.config.ports.begin(), p.config.ports.end(), wants);
  const bool shm = !p.config.ports.empty() && p.place != 0;
  if (!rdma && !shm) {
    p.shard.context().hooks = &kNoLinks;
    return;
  }
  fastpath::LinksConfig config;
  config.capabilities = static_cast<std::uint8_t>((rdma ? fastpath::kCapRoce : 0) | (shm ? fastpath::kCapShm : 0));
  config.place = shm ? p.place : 0;
  config.random = random_number;
  config.routed_peers = p.rdma_peers;
  config.note = note_link;
  p.links = std::make_unique<fastpath::PeerLinks>(stack.tcp(), memory, config);
  if (p.links->valid()) p.shard.use_links(*p.links);
}

/// A process of the family has died while it held the lock. Everything that links the arena's objects is made anew.
void recover(void* process, const void*) {
  BYPASS_LOG_WARN("a process of the family has died inside the stack: its indices are made anew");
  socket::rebuild_after_death(static_cast<Process*>(process)->shard);
}

bool cannot_start(Reason reason, const std::string& problem) {
  report_problem(reason, problem);
  end_if_strict();
  return false;
}

/// Whether the address range can hold the budget, where the user named one. The range is smaller under RLIMIT_AS.
bool memory_fits(const Config& config, std::string& problem) {
  const SettingValue& value = config.values[setting_index(*setting_by_env("BYPASS_MEMORY"))];
  const std::size_t most = arena::largest_budget();
  if (value.origin == Origin::kDefault || most == 0 || config.memory <= most) return true;
  const std::string text =
      "is more than the address space that this process may take (RLIMIT_AS, ulimit -v) holds; accepted is up to ";
  problem = config.problem_of("BYPASS_MEMORY", text + std::to_string(most >> 20) + "M").message();
  return false;
}

/// The first thread that ends the process does the work; another one waits until it is done. False: nothing is left to
/// do. That is also the answer for a handler that interrupted the thread that does the work.
bool begin_end(Process& p) {
  const auto self = static_cast<std::uint32_t>(gettid());
  std::uint32_t by = 0;
  if (p.ending.compare_exchange_strong(by, self)) return true;
  for (; by != Process::kEnded && by != self; by = p.ending.load())
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&p.ending), by, 1'000'000'000);
  return false;
}

void finish_end(Process& p) {
  p.ending = Process::kEnded;
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&p.ending), INT_MAX);
}

/// The name by which the kernel knows a descriptor, where the program has given it one: a connection's peer, else the
/// socket's own address.
Endpoint name_of(int fd) {
  if (fd < 0) return {};
  const Endpoint peer = socket::kernel_peer(fd);
  return peer.port != 0 ? peer : socket::kernel_name(fd);
}

}  // namespace

Process* process() {
  return g_process;
}

bool may_name_ports() {
  const char* const* const environment = backend_host().environment();
  const char* const port = find_variable(environment, "BYPASS_PORT");
  if (port != nullptr && *port != 0) return std::string_view(port) != "none";
  return find_variable(environment, "BYPASS_CONFIG") != nullptr || has_system_file();
}

bool names_ports() {
  return !configuration().ports.empty();
}

void at_load(char** envp) {
  keep_environment(envp);
  arena::reserve();
}

std::span<const std::byte> arena_range() {
  return arena::range();
}

std::size_t address_bytes() {
  // the library's code, its threads with their heaps, and rings
  constexpr std::size_t kBeside = std::size_t{128} << 20;
  constexpr std::size_t kPorts = std::size_t{1} << 30;  // DPDK takes some 400 MiB without huge pages
  const std::size_t arena = arena::range().size();
  if (arena == 0) return 0;
  const bool ports = g_process != nullptr ? !g_process->config.ports.empty() : may_name_ports();
  return arena + kBeside + (ports ? kPorts + PortAddresses::bytes() : 0);
}

bool accelerates() {
  return !g_forked_child && configuration().wants_anything();
}

bool start() {
  if (g_process != nullptr) return !g_forked_child;
  Inside inside;
  const Config& config = configuration();
  if (!config.wants_anything()) return false;
  if (const OwnCall* const refused = find_refused_call()) {
    const std::string text = "a filter of system calls (seccomp) refuses " + std::string(refused->name);
    return cannot_start(Reason::kSyscallFilter, text);
  }
  auto* ports = new PortSet(config);
  if (!check_ports(*ports)) return false;
  std::string problem;
  if (!memory_fits(config, problem)) return cannot_start(Reason::kConfigProblem, problem);
  StackConfig stack_settings = stack_config(config);
  if (!os::fill_random(stack_settings.tcp.secret, sizeof stack_settings.tcp.secret))
    return cannot_start(Reason::kSyscallFilter, "getrandom gives no key for TCP's sequence numbers");
  arena::Mapped* mapped = arena::take(config.memory, problem);
  if (mapped == nullptr) return cannot_start(Reason::kArenaUnavailable, problem);
  Stack* stack = Stack::create(*mapped->memory, stack_settings);
  if (stack == nullptr)
    return cannot_start(Reason::kNoMemory,
                        "BYPASS_MEMORY: too small for the stack's own tables; 16M and more is accepted");
  auto* p = new Process(config, region(), *ports, *mapped, *stack);
  g_process = p;
  fill_policy(config);
  socket::process_shard = &p->shard;
  fill_local_policy(*p);
  prepare_links(*p, *stack, *mapped->memory);
  mapped->lock.set_handlers({p, recover, nullptr});
  ports->on_tried(after_opening);
  p->progress.on_tick(publish, p);
  p->progress.on_end(before_exit);
  BYPASS_LOG_INFO("started: profile %s", profile_name(p->config.profile));
  return true;
}

namespace {

void close_ports(void* process) {
  auto* p = static_cast<Process*>(process);
  p->ports.close(p->shard);
}

/// Where no handler runs, the caller joins the thread and closes the ports itself. Both make libc free memory, which a
/// handler must not do.
void end_threads_and_ports(Process& p) {
  if (socket::is_in_handler()) return p.progress.end_in_handler(close_ports, &p);
  p.progress.stop();
  close_ports(&p);
}

}  // namespace

namespace {

/// `handed_on`: another image follows, and it is to tell what this one has told of its sockets. The region keeps that
/// for the next image. It is kept after the progress thread has ended, because that thread may be about to make the
/// region.
void end_image(bool handed_on) {
  const auto keep = [handed_on] {
    if (handed_on) region().keep_for_exec();
  };
  if (g_forked_child || g_left) return keep();
  Process* p = g_process;
  // A handler that interrupted our own work and ends the process finds the stack in the middle of a change.
  if (p == nullptr || socket::thread_signals.in_lock > 0) {
    keep();
    return remove_region();
  }
  Inside inside;
  if (!begin_end(*p)) return keep();
  socket::thread_signals.ends = true;
  deliver_rest(*p);
  end_threads_and_ports(*p);
  keep();
  remove_region();
  finish_end(*p);
}

}  // namespace

void before_exit() {
  end_image(false);
}

namespace {

/// Publishes what nobody will publish later.
void publish_a_last_time(Process& p) {
  p.sockets_published = {};
  publish(&p);
}

}  // namespace

bool leave() {
  if (Process* const p = g_process; p != nullptr && !g_forked_child) {
    if (p->ports.opened()) return false;
    p->region.why(Reason::kSyscallFilter, -1, 0, {}, "");
    publish_a_last_time(*p);
    p->progress.stop();
  }
  g_left = true;
  leave_region();
  return true;
}

void expect_end_of_first_thread(bool now) {
  if (g_process == nullptr || g_forked_child) return;
  g_process->progress.expect(now ? ProgramThreads::End::kNow : ProgramThreads::End::kByFilter);
}

bool is_threaded_by_us() {
  return g_process != nullptr && !g_forked_child && g_process->progress.is_only_other();
}

namespace {

/// Whether the kernel says that the process has one thread, where /proc cannot be read (after chroot(2)). This
/// unshare(2) changes nothing, and the kernel refuses it to a process of several threads.
bool is_alone_to_kernel() {
  return all_threads() == 0 && os::call(SYS_unshare, CLONE_THREAD) == 0;
}

}  // namespace

bool has_one_thread() {
  return all_threads() == 1 || is_threaded_by_us() || is_alone_to_kernel();
}

bool pause_threads() {
  return g_process != nullptr && !g_forked_child && !g_process->ports.opened() && g_process->progress.pause();
}

void resume_threads() {
  if (g_process->progress.start()) return;
  // After unshare(CLONE_NEWPID) the process can make no threads any more.
  constexpr const char* kNoThread = "the kernel refuses the process a progress thread";
  BYPASS_LOG(LogLevel::kInfo, "no shared memory within the host any more: %s", kNoThread);
  g_process->region.why(Reason::kNoSharedMemory, -1, IPPROTO_TCP, {}, kNoThread);
  socket::end_shared_memory();
  publish_a_last_time(*g_process);
}

void before_exec(bool handed_on) {
  end_image(handed_on);
  if (handed_on) renew_region();
  Process* const p = g_process;
  if (p != nullptr && !g_forked_child && socket::has_kin()) p->shard.family().detach();
}

void prepare_fork() {
  if (g_process == nullptr || g_forked_child) return;
  if (!g_process->config.ports.empty() && g_process->config.trust == Trust::kCredentials) {
    spare::make();
    if (g_process->ports.opened() && g_process->shard.owns_wires()) (void)spare::claim_ports();
  }
  g_process->progress.join_family();
  g_process->ports.hold_for_fork(g_process->shard);
  holds_ports = true;
  fork_under_way = socket::begin_fork();
}

void share_with_child(socket::File& file) {
  socket::share_with_child(fork_under_way, file);
}

void after_fork_parent(int child) {
  if (g_process == nullptr || g_forked_child) return;
  if (std::exchange(holds_ports, false)) g_process->ports.let_go_after_fork();
  socket::end_fork_in_parent(fork_under_way, child);
  g_process->progress.expect_child(child);
  static bool told = false;
  if (fork_under_way.reserved != socket::kNoSlot || std::exchange(told, true)) return;
  g_process->region.why(Reason::kForkedChild, -1, 0, Endpoint{}, "in the child, until it execs");
}

void forget_parents(Process& p) {
  p.ports.drop_in_child();
  p.region.abandon();
  p.region_is_parents = true;
  p.socket_slots.clear();
  p.told = {};
  p.ending = 0;
  p.progress.forget();
  p.local_ports.abandon();
  forget_own_threads();
  crash::on_fork_child();
}

// The child closes its copies of our descriptors at once. While a child holds a wire, the peer cannot see that the
// owner died.
bool after_fork_child() {
  if (g_process == nullptr || g_forked_child) return false;
  Process& p = *g_process;
  holds_ports = false;
  forget_parents(p);
  socket::local_save_channels();
  p.ports.hide_handovers();
  spare::hide();
  close_own_descriptors(log_descriptor());
  spare::show();
  p.ports.show_handovers();
  socket::local_restore_channels();
  // a child that was forked by a handler shares no memory with others
  if (!socket::is_in_handler()) open_local_ports(p);
  g_forked_child = !socket::join_family(fork_under_way);
  if (g_forked_child) {
    socket::process_shard = nullptr;
    p.ports.drop_handovers();
  }
  return !g_forked_child;
}

bool adopt_number(socket::File& file, int fd) {
  return socket::adopt_number(fork_under_way, file, fd);
}

// A child with a socket on the wire may live longer than the process that owns the ports now.
void end_fork_child() {
  socket::end_fork_in_child(fork_under_way);
  if (!socket::refers_to_wire() || !g_process->progress.start()) return g_process->ports.drop_handovers();
  // The family is joined here and not by the progress thread. A number that is open there for a moment may be the one
  // that the program expects next.
  g_process->progress.join_family();
  if (!g_process->config.ports.empty()) g_process->progress.want_ports();
}

void record_why(int fd, unsigned reason, const char* detail) {
  if (g_process == nullptr) return;
  const int saved = errno;
  record_why(fd, reason, name_of(fd), detail);
  errno = saved;
}

void record_why(int fd, unsigned reason, const Endpoint& address, const char* detail) {
  if (g_process == nullptr) return;
  int protocol = 0;
  socklen_t length = sizeof protocol;
  if (fd >= 0) socket::kernel->getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length);
  g_process->region.why(static_cast<Reason>(reason), fd, static_cast<std::uint8_t>(protocol), address, detail);
}

}  // namespace bypass::runtime
