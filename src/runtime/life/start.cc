// A process starts: its settings are checked, and its graph is built in one place. Also what is asked before that: what
// the configuration names, and which addresses are the library's.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/port_check.h"
#include "config/settings.h"
#include "observe/region.h"
#include "os/log/environment_copy.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/own_calls.h"
#include "os/own/own_work.h"
#include "runtime/family/arena.h"
#include "runtime/family/keeper/keeper.h"
#include "runtime/host.h"
#include "runtime/life/before_start.h"
#include "runtime/life/from_config.h"
#include "runtime/life/next_image.h"
#include "runtime/life/state.h"
#include "runtime/links/prepare_links.h"
#include "runtime/ports/open_ports.h"
#include "runtime/ports/port_addresses.h"
#include "runtime/ports/port_set.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/progress/publish.h"
#include "runtime/routing/policy.h"
#include "socket/family/kin.h"
#include "socket/objects.h"
#include "socket/shard.h"
#include "stack/stack.h"

namespace bypass::runtime {

Process* g_process = nullptr;
bool g_left = false;
bool g_forked_child = false;

namespace {

using observe::Reason;

/// False: the process stays with the kernel's sockets. Each problem has been reported.
bool check_ports(PortSet& ports) {
  std::vector<PortSet::Problem> problems;
  if (ports.check(problems)) return true;
  for (const PortSet::Problem& problem : problems) report_problem(problem.reason, problem.text);
  end_if_strict();
  return false;
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

}  // namespace

void end_sharing() {
  g_forked_child = true;
  socket::process_shard = nullptr;
}

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
  const bool is_reserved = read_heritage_at_load(envp);
  keep_environment(envp);
  tidy_environment(envp);
  if (!is_reserved) arena::reserve();
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

namespace {

/// What a process stands on: new, or left by the image before this one.
struct Ground {
  arena::Mapped* mapped = nullptr;
  Stack* stack = nullptr;
  socket::Wires* wires = nullptr;
  fastpath::PeerTable* links = nullptr;
};

/// Null `mapped`: it cannot start, which has been reported.
Ground new_ground(const Config& config, const StackConfig& settings) {
  std::string problem;
  Ground ground;
  arena::keep_descriptor(!config.ports.empty());
  ground.mapped = arena::take(config.memory, problem);
  if (ground.mapped == nullptr) {
    (void)cannot_start(Reason::kArenaUnavailable, problem);
    return {};
  }
  ground.stack = Stack::create(*ground.mapped->memory, settings);
  if (ground.stack != nullptr) return ground;
  (void)cannot_start(Reason::kNoMemory,
                     "BYPASS_MEMORY: too small for the stack's own tables; 16M and more is accepted");
  return {};
}

Ground left_ground() {
  arena::keep_descriptor(true);
  std::string problem;
  const char* why = why_not_take_up();
  if (why == nullptr) {
    const HeritageHead& head = heritage()->head;
    arena::Mapped* const mapped = arena::take_up(head.arena, *head.memory, problem);
    socket::objects = head.objects;
    if (mapped != nullptr) return {mapped, head.stack, head.wires, head.links};
    why = problem.c_str();
  }
  BYPASS_LOG_ERROR("sockets that this image inherits have ended: %s", why);
  refuse_heritage(why);
  return {};
}

}  // namespace

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
  Ground ground = has_heritage() ? left_ground() : Ground{};
  if (ground.mapped == nullptr) ground = new_ground(config, stack_settings);
  if (ground.mapped == nullptr) return false;
  auto* p = new Process(config, region(), *ports, *ground.mapped, *ground.stack, ground.wires);
  g_process = p;
  fill_policy(config);
  socket::process_shard = &p->shard;
  fill_local_policy(*p);
  prepare_links(*p, *ground.stack, *ground.mapped->memory, ground.links);
  ground.mapped->lock.set_handlers({p, recover, nullptr});
  ports->on_tried(after_opening);
  p->progress.on_tick(publish, p);
  p->progress.on_end(before_exit);
  if (config.keeper == Keeper::kOn) begin_keeper(*p);
  BYPASS_LOG_INFO("started: profile %s", profile_name(p->config.profile));
  return true;
}

}  // namespace bypass::runtime
