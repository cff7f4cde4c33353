#include "runtime/process.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "observe/region.h"
#include "runtime/arena.h"
#include "runtime/config.h"
#include "runtime/crash.h"
#include "runtime/decide.h"
#include "runtime/host.h"
#include "runtime/inside.h"
#include "runtime/log.h"
#include "runtime/plugin.h"
#include "runtime/ports.h"
#include "runtime/process_graph.h"
#include "runtime/progress.h"
#include "runtime/publish.h"
#include "runtime/routes.h"
#include "runtime/run_dir.h"
#include "runtime/settings.h"
#include "socket/address.h"
#include "socket/api.h"
#include "socket/kernel.h"
#include "socket/shard.h"
#include "stack/stack.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

char** g_environment = nullptr;
Config* g_config = nullptr;    // read at the first internet socket, then constant
Process* g_process = nullptr;  // the graph; null until start()
bool g_forked_child = false;   // of a process that had started: its sockets are the kernel's

/// A process under BYPASS_STRICT ends with this status when something cannot be set up as asked.
constexpr int kStrictStatus = 78;

const char* profile_name(Profile profile) {
  return profiles()[static_cast<std::size_t>(profile)].name.data();
}

void report(const char* text) {
  BYPASS_LOG_ERROR("%s", text);
}

[[noreturn]] void end_strict() {
  BYPASS_LOG_ERROR("BYPASS_STRICT is on: the program ends with status %d", kStrictStatus);
  _exit(kStrictStatus);
}

void read_configuration() {
  if (g_config != nullptr) return;
  Inside inside;
  auto* config = new Config(load_config(g_environment, toml_reader()));
  config->rules.keep_program(program_invocation_short_name);
  int log_fd = -1;
  if (!config->log_file.empty()) {
    log_fd = open_log_file(config->log_file.c_str(), descriptor_base());
    if (log_fd < 0)
      config->problems.push_back({"BYPASS_LOG_FILE", config->log_file, "environment",
                                  std::string("cannot be opened for writing: ") + strerror(errno)});
    else
      own_descriptor(log_fd, true);
  }
  start_log(config->log_level, log_fd);
  for (const ConfigProblem& problem : config->problems) report(problem.message().c_str());
  if (!config->problems.empty() && config->strict) end_strict();
  g_config = config;
}

tcp::EngineConfig engine_config(const Config& config) {
  tcp::EngineConfig tcp;
  tcp.rto_min = config.tcp.rto_min;
  tcp.rto_max = config.tcp.rto_max;
  tcp.delayed_ack = config.tcp.delayed_ack;
  tcp.time_wait = config.tcp.time_wait;
  tcp.syn_retries = config.tcp.syn_retries;
  tcp.retries2 = config.tcp.retries2;
  tcp.initial_window = config.tcp.initial_window;
  tcp.send_buffer = static_cast<std::uint32_t>(config.tcp.send_buffer);
  tcp.receive_buffer = static_cast<std::uint32_t>(config.tcp.receive_buffer);
  tcp.congestion = config.tcp.congestion == Congestion::kNewReno ? tcp::Congestion::kNewReno : tcp::Congestion::kCubic;
  Inside inside;
  const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || socket::kernel->read(fd, tcp.secret, sizeof tcp.secret) != static_cast<ssize_t>(sizeof tcp.secret)) {
    // Without /dev/urandom (a bare chroot) the keys are as good as the clock and the address-space layout.
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    tcp.secret[0] = static_cast<std::uint64_t>(now.tv_nsec) * 0x9e3779b97f4a7c15ULL;
    tcp.secret[1] = reinterpret_cast<std::uintptr_t>(&now) ^ static_cast<std::uint64_t>(now.tv_sec);
  }
  if (fd >= 0) socket::kernel->close(fd);
  return tcp;
}

StackConfig stack_config(const Config& config) {
  StackConfig stack;
  stack.tcp = engine_config(config);
  stack.tso = config.tso;
  stack.checksum_offload = config.checksum_offload;
  return stack;
}

// --- What the socket layer asks ---------------------------------------------------------------------------

bool is_inside_library() {
  return socket::thread_signals.in_lock > 0 || preload::thread_path.depth > 0;
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

/// Opens the ports, once; from then on the progress thread minds them.
bool open_ports(Process& p) {
  if (p.ports.opened()) return true;
  if (!p.ports.open(p.shard)) return false;
  install_crash_reports();
  if (!p.progress.start()) BYPASS_LOG_WARN("no progress thread: the stack moves only inside the program's calls");
  return true;
}

/// Acts on a verdict: opens the ports for "bypass", notes the reason for anything else.
socket::Decision act_on(const Verdict& verdict, int fd, std::uint8_t protocol, const Endpoint& address, bool open_now) {
  Process& p = *g_process;
  if (verdict.action == RuleAction::kBypass) {
    if (!open_now) return socket::Decision::kBypass;
    if (open_ports(p) && p.ports.usable(verdict.port)) return socket::Decision::kBypass;
    const std::string* problem = nullptr;
    if (verdict.port < p.ports.entries().size()) problem = &p.ports.entries()[verdict.port].problem;
    p.region.why(Reason::kPortUnavailable, fd, protocol, address, problem != nullptr ? problem->c_str() : "");
    if (p.config.strict) end_strict();
    return socket::Decision::kKernel;
  }
  p.region.why(verdict.reason, fd, protocol, address, verdict.detail);
  return verdict.action == RuleAction::kFail ? socket::Decision::kFail : socket::Decision::kKernel;
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
  return act_on(g_process->decider.connect(proto_of(type), *endpoint), fd, number_of(type), *endpoint, true);
}

// A listener does not open the ports by itself: a daemon listens, forks, and its parent is gone. The
// progress thread does a little later, or the first accept or wait.
socket::Decision decide_listen(int fd, int type, const sockaddr* local) {
  const auto endpoint = socket::endpoint_of(local, sizeof(sockaddr_in6));
  if (!endpoint) return socket::Decision::kKernel;
  const auto decision =
      act_on(g_process->decider.listen(proto_of(type), *endpoint), fd, number_of(type), *endpoint, false);
  if (decision == socket::Decision::kBypass) {
    g_process->progress.start();
    g_process->progress.want_ports();
  }
  return decision;
}

bool need_wire() {
  Process& p = *g_process;
  if (open_ports(p)) return true;
  if (p.config.strict) end_strict();
  return false;
}

bool routes_to(const sockaddr* remote) {
  const auto endpoint = socket::endpoint_of(remote, sizeof(sockaddr_in6));
  if (!endpoint) return false;
  return g_process->decider.connect(RuleProto::kUdp, *endpoint).action == RuleAction::kBypass;
}

void socket_why(int fd, unsigned reason, const char* detail) {
  record_why(fd, reason, detail);
}

void fill_environment(Process& p) {
  socket::Environment& e = socket::environment;
  e.shard = &p.shard;
  e.decide_connect = decide_connect;
  e.decide_listen = decide_listen;
  e.need_wire = need_wire;
  e.routes_to = routes_to;
  e.record_why = socket_why;
  e.spin = p.config.spin == kForever ? Duration(-1) : p.config.spin;
  e.yield = p.config.yield == kForever ? Duration(-1) : p.config.yield;
  e.kernel_poll = p.config.kernel_poll;
  e.send_buffer = static_cast<std::uint32_t>(p.config.tcp.send_buffer);
  e.receive_buffer = static_cast<std::uint32_t>(p.config.tcp.receive_buffer);
  e.own_descriptor = own_high;
}

bool check_ports(Process& p) {
  std::vector<std::string> problems;
  if (p.ports.check(problems)) return true;
  for (const std::string& problem : problems) {
    report(problem.c_str());
    p.region.why(Reason::kPluginMissing, -1, 0, Endpoint{}, problem.c_str());
  }
  if (p.config.strict) end_strict();
  return false;
}

void create_region(Process& p) {
  observe::RegionStart start;
  start.run_dir = run_dir_path(p.config.run_dir);
  start.library_version = BYPASS_VERSION;
  start.profile = profile_name(p.config.profile);
  start.counters = stack_counter_table();
  std::string problem;
  if (!p.region.create(start, problem)) BYPASS_LOG_WARN("no statistics for the bypass command: %s", problem.c_str());
}

}  // namespace

Process* process() {
  return g_process;
}

void at_load(char** envp) {
  g_environment = envp;
  arena::reserve();
}

bool accelerates() {
  if (g_forked_child) return false;
  read_configuration();
  return g_config->wants_port();
}

bool start() {
  if (g_process != nullptr) return !g_forked_child;
  Inside inside;
  read_configuration();
  if (!g_config->wants_port()) return false;
  std::string problem;
  arena::Mapped* mapped = arena::take(g_config->memory, problem);
  if (mapped == nullptr) {
    report(problem.c_str());
    if (g_config->strict) end_strict();
    return false;
  }
  Stack* stack = Stack::create(*mapped->memory, stack_config(*g_config));
  if (stack == nullptr) {
    report("BYPASS_MEMORY: too small for the stack's own tables; 16M and more is accepted");
    if (g_config->strict) end_strict();
    return false;
  }
  auto* p = new Process(*g_config, *mapped, *stack);
  g_process = p;
  create_region(*p);
  fill_environment(*p);
  if (!check_ports(*p)) {
    g_process = nullptr;
    return false;
  }
  p->progress.on_tick(publish, p);
  BYPASS_LOG_INFO("started: %zu port(s), profile %s", p->config.ports.size(), profile_name(p->config.profile));
  return true;
}

void before_exit() {
  Process* p = g_process;
  if (p == nullptr || g_forked_child || p->ended) return;
  p->ended = true;
  Inside inside;
  deliver_rest(*p);
  p->progress.stop();
  p->ports.close(p->shard);
  p->region.remove();
}

void prepare_fork() {}

void after_fork_parent() {}

// The child of a process that has started: its copies of our descriptors go at once (a wire that a child holds
// hides the owner's death from the peer), and its sockets are the kernel's from here on.
void after_fork_child() {
  if (g_process == nullptr) return;
  g_process->ports.drop_in_child();
  g_process->region.abandon();
  g_process->progress.forget();
  close_own_descriptors();
  crash::on_fork_child();
  g_forked_child = true;
}

void record_why(int fd, unsigned reason, const char* detail) {
  if (g_process != nullptr)
    g_process->region.why(static_cast<Reason>(reason), fd, 0, Endpoint{}, detail != nullptr ? detail : "");
}

}  // namespace bypass::runtime
