#include "runtime/family/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "os/log/log.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_descriptors.h"
#include "os/own/own_work.h"
#include "runtime/family/keeper/notice.h"
#include "runtime/family/own_process.h"
#include "runtime/family/pump/family_process.h"
#include "runtime/host.h"
#include "runtime/life/before_start.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/undisturbed.h"
#include "socket/family/kin.h"
#include "socket/family/move_sockets.h"
#include "socket/objects.h"

namespace bypass::runtime {

namespace {

constexpr const char* kKeeperName = "bypass-keeper";
constexpr char kGoesOn = 'g';

void sleep_for(timespec time) {
  os::call(SYS_nanosleep, os::address(&time), 0);
}

// --- The keeper waits

/// A pidfd of some living process of the family; -1: there is none. -2: one lives that no pidfd can be had of.
int watch_somebody(socket::Family& family) {
  const socket::FamilyTable& table = family.table();
  bool unseen = false;
  for (std::uint32_t slot = 0; slot < table.high.load(std::memory_order_acquire); slot++) {
    const std::uint32_t incarnation = family.incarnation_of(slot);
    const std::uint32_t pid = table.slots[slot].pid.load(std::memory_order_acquire);
    if (pid == 0 || !family.alive(slot, incarnation)) continue;
    const bool here = table.slots[slot].pid_namespace.load() == os::pid_namespace();
    const long fd = here ? os::pidfd_open(pid) : -1;
    if (fd >= 0 && family.alive(slot, incarnation)) return static_cast<int>(fd);
    if (fd >= 0) os::close(static_cast<int>(fd));
    unseen = unseen || !here;
  }
  return unseen ? -2 : -1;
}

/// Returns when no process of the family lives.
void await_last(socket::Family& family) {
  for (;;) {
    const int fd = watch_somebody(family);
    if (fd == -1) return;
    if (fd < 0) {  // in another pid namespace
      sleep_for({1, 0});
      continue;
    }
    pollfd item{fd, POLLIN, 0};
    os::call(SYS_ppoll, os::address(&item), 1, 0, 0, 8);
    os::close(fd);
  }
}

// --- The keeper ends what is left

/// What is sent while no link is up may be lost, and the peer needs some milliseconds to come back.
void await_link(Process& p) {
  constexpr Duration kPatience = std::chrono::seconds(1);
  const Instant latest = p.clock.now() + kPatience;
  while (!p.ports.any_link_is_up() && p.clock.now() < latest && !is_asked_for_ports()) {
    {
      const socket::Guard guard(p.shard);
      p.shard.poll_locked();
    }
    sleep_for({0, 1'000'000});
  }
}

/// Whether the dead have left anything that peers are to be told of. What they had received in a port's memory is gone
/// with them: all indices are made anew without it.
bool take_up_what_is_left(Process& p) {
  socket::Guard guard(p.shard);
  if (!socket::is_wire_needed(guard)) return false;
  socket::rebuild_after_death(p.shard);
  return true;
}

void end_connections(Process& p) {
  if (!p.shard.family().on_fork_child()) return;
  if (!PortSet::lent(p.shard) && take_up_what_is_left(p)) {
    await_keepers_end(p.config);
    give_notice(p.config);
    socket::enter_arena();
    if (p.ports.open(p.shard)) {
      await_link(p);
      {
        socket::Guard guard(p.shard);
        socket::end_the_dead(guard);
      }
      deliver_rest(p);
      p.ports.close(p.shard);
      BYPASS_LOG_INFO("the connections of processes that were killed have ended");
    }
  }
  p.shard.family().detach();
  remove_region();
}

/// Lets go of what a forked child lets go of. What the program has open would not end with the program otherwise.
void let_go_of_program(Process& p) {
  name_process(kKeeperName);
  name_command_line(kKeeperName);
  leave_group();
  ignore_signals();
  stay_inside();
  forget_parents(p);
  p.hurries = is_asked_for_ports;
  socket::forget_own_halves();
  close_others_descriptors();
  p.ports.hide_handovers();
  close_own_descriptors(log_descriptor());
  p.ports.show_handovers();
  const auto nothing = static_cast<int>(os::open("/dev/null", O_RDWR));
  for (int fd = 0; fd < 3; fd++)
    if (fd != log_descriptor() && nothing >= 0) os::call(SYS_dup2, nothing, fd);
  if (nothing > 2) os::close(nothing);
  os::call(SYS_chdir, os::address("/"));
}

/// A keeper that hangs, whatever the reason, ends by SIGALRM. Nothing stays of it.
void limit_time(const Config& config) {
  using Action = int (*)(int, const struct sigaction*, struct sigaction*);
  constexpr auto kBeside = std::chrono::seconds(60);  // for the opening of ports, on a machine that is overloaded
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  reinterpret_cast<Action>(backend_host().libc("sigaction"))(SIGALRM, &plain, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  const auto time = std::chrono::duration_cast<std::chrono::seconds>(config.exit_linger) + kBeside;
  const itimerval limit{{0, 0}, {static_cast<time_t>(time.count()), 0}};
  os::call(SYS_setitimer, ITIMER_REAL, os::address(&limit), 0);
}

/// Takes locks that another thread of the program may have held at the fork: then this never returns, and the program
/// makes another keeper.
void try_libc() {
  constexpr std::size_t kPastCaches = 100'000;  // malloc has the lock of its arena
  void* const block = std::malloc(kPastCaches);
  __asm__ volatile("" : : "r"(block) : "memory");  // otherwise both calls may be left out
  std::free(block);
  dl_iterate_phdr([](dl_phdr_info*, std::size_t, void*) { return 1; }, nullptr);
}

[[noreturn]] void be_keeper(Process& p, int tells) {
  try_libc();
  os::call(SYS_write, tells, os::address(&kGoesOn), 1);
  let_go_of_program(p);
  await_last(p.shard.family());
  limit_time(p.config);
  end_connections(p);
  for (;;) os::call(SYS_exit_group, 0);
}

// --- The program's side

/// A process that adopts orphans would have the keeper as a child: wait(2) would never say that there is none.
bool adopts_orphans() {
  int adopts = 0;
  os::call(SYS_prctl, PR_GET_CHILD_SUBREAPER, os::address(&adopts));
  return adopts != 0 || os::getpid() == 1;
}

/// Pages that the program has to itself. Each page that it writes to beside a keeper has a copy there.
std::size_t own_memory() {
  constexpr std::size_t kPage = 4096;
  std::array<char, 128> text{};
  const auto fd = static_cast<int>(os::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return 0;
  (void)os::read(fd, text.data(), text.size() - 1);
  os::close(fd);
  char* at = text.data();
  (void)std::strtoul(at, &at, 10);
  const std::size_t resident = std::strtoul(at, &at, 10), shared = std::strtoul(at, &at, 10);
  return (resident - std::min(shared, resident)) * kPage;
}

/// Null: a keeper can be made.
const char* why_no_keeper(Process& p) {
  constexpr std::size_t kMuch = std::size_t{64} << 20;
  if (socket::is_in_handler()) return "a signal handler opens the first socket on a port";
  if (p.shard.wires().keeper.pid.load() != 0 || PortSet::lent(p.shard)) return "a driver serves the ports";
  if (os::call(SYS_prctl, PR_GET_SECCOMP) != SECCOMP_MODE_DISABLED) return "a filter of system calls (seccomp)";
  if (adopts_orphans()) return "the process adopts orphans, and would find the keeper among its children";
  if (p.config.keeper == Keeper::kAuto && own_memory() > kMuch) return "the process has more than 64 MiB of memory";
  return nullptr;
}

/// The keeper, a copy of this process, is to know where the family's objects lie.
bool make_objects(Process& p) {
  const socket::Guard guard(p.shard);
  return socket::prepare_objects(p.shard);
}

/// Whether the keeper has come past what may keep it for ever.
bool goes_on(int hears) {
  constexpr timespec kPatience{0, 200'000'000};
  pollfd item{hears, POLLIN, 0};
  char word = 0;
  return os::call(SYS_ppoll, os::address(&item), 1, os::address(&kPatience), 0, 8) == 1 &&
         os::read(hears, &word, 1) == 1;
}

/// The one in between ends at once, so that init, or a subreaper, adopts the keeper.
bool fork_keeper(Process& p) {
  UnixPair pair(SOCK_STREAM);
  if (!pair) return false;
  p.ports.hold_for_fork(p.shard);
  const pid_t between = fork_unheard();
  if (between == 0) {
    const pid_t keeper = fork_plainly();
    if (keeper == 0) be_keeper(p, pair[1]);
    const auto pid = static_cast<std::uint32_t>(keeper);
    if (keeper > 0) p.shard.wires().family_keeper.set(pid, os::start_time_of(pid));
    os::call(SYS_exit_group, 0);
  }
  p.ports.let_go_after_fork();
  if (between > 0) reap(between);
  pair.close(1);
  return between > 0 && goes_on(pair[0]);
}

/// With several threads, one of them may be inside malloc at the moment of the fork. The next moment is another one.
bool make_keeper(Process& p) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; i++) {
    if (fork_keeper(p)) return true;
    if (!end_keeper(p)) return false;
  }
  return false;
}

}  // namespace

void begin_keeper(Process& p) {
  static std::atomic<bool> tried{false};
  socket::Wires& wires = p.shard.wires();
  if (p.config.keeper == Keeper::kOff || p.config.ports.empty() || wires.has_family_keeper.load()) return;
  if (tried.exchange(true)) return;
  const Inside inside;
  const Undisturbed undisturbed;
  const char* problem = why_no_keeper(p);
  if (problem == nullptr && make_objects(p) && !wires.has_family_keeper.exchange(true) && !make_keeper(p))
    problem = "no process can be made";
  if (problem != nullptr) BYPASS_LOG_INFO("no keeper for connections of killed processes: %s", problem);
}

bool end_keeper(Process& p) {
  socket::Maker& keeper = p.shard.wires().family_keeper;
  const std::uint32_t pid = keeper.pid.load();
  if (pid == 0) return true;
  const long fd = os::pidfd_open(pid);  // first: from here on no other process is meant
  bool ended = fd == -ESRCH || !keeper.lives();
  if (!ended && fd >= 0 && keeper.start_time.load() != 0 && os::kill(pid, SIGKILL) == 0) {
    pollfd item{static_cast<int>(fd), POLLIN, 0};
    constexpr timespec kPatience{5, 0};
    ended = os::call(SYS_ppoll, os::address(&item), 1, os::address(&kPatience), 0, 8) == 1;
  }
  if (fd >= 0) os::close(static_cast<int>(fd));
  if (ended) keeper.set(0, 0);
  return ended;
}

}  // namespace bypass::runtime
