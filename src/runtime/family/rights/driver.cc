#include "runtime/family/rights/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "os/log/log.h"
#include "os/os.h"
#include "os/own/own_descriptors.h"
#include "runtime/family/arena.h"
#include "runtime/family/heirs.h"
#include "runtime/family/own_process.h"
#include "runtime/family/rights/hand_back.h"
#include "runtime/family/rights/spare.h"
#include "runtime/host.h"
#include "runtime/life/before_start.h"
#include "runtime/process_graph.h"
#include "socket/family/kin.h"
#include "socket/family/move_sockets.h"

namespace bypass::runtime {

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr timespec kPatience{30, 0};  // with the opening of ports: some tenths of a second, seconds beside other work
constexpr char kGo = 'g';
constexpr const char* kDriverName = "bypass-driver";
constexpr const char* kHeirName = "bypass-heir";
enum End : int { kDone = 0, kFailed = 1, kAgain = 2 };  // how the server has ended, as the keeper sees it

template <typename Signature>
Signature* libc(const char* name) {
  return reinterpret_cast<Signature*>(backend_host().libc(name));
}

/// What the driver is made for.
struct Task {
  Standing then;  // the rights that it will have
  int pair;       // to the process that founds the family; -1: the arena is there, and another driver has been killed
  Opens opens;
  LastServer* server = nullptr;
  Words words{};
  pid_t keeper = 0, heir = 0;  // 0: none yet; -1: there can be none
};

// --- A process of our own, made of a copy of the program's

/// Closes all descriptors but ours. Else the program's end would not reach its peers while this process lives.
void close_programs(std::array<int, 5> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned from = 3;
  for (const int fd : kept) {
    if (fd < 3) continue;
    if (static_cast<unsigned>(fd) > from) os::call(SYS_close_range, from, fd - 1, 0);
    from = static_cast<unsigned>(fd) + 1;
  }
  os::call(SYS_close_range, from, static_cast<long>(UINT_MAX), 0);
  const auto nothing = static_cast<int>(os::open("/dev/null", O_RDWR));
  for (int fd = 0; fd < 3; fd++)
    if (fd != log_descriptor() && nothing >= 0) os::call(SYS_dup2, nothing, fd);
  if (nothing > 2) os::close(nothing);
}

/// Lets go of what a forked child lets go of, and of the arena.
void leave_program(Process& p, const Task& task) {
  name_process(kDriverName);
  leave_group();
  ignore_signals();
  forget_parents(p);
  p.ports.drop_handovers();
  socket::forget_own_halves();
  arena::drop();
  const bool drives = task.opens == Opens::kWhenCalled || spare::begin_driving();
  spare::hide();
  own_descriptor(task.pair, false);
  close_own_descriptors(log_descriptor());
  close_programs(
      {spare::descriptor(), spare::sockets_descriptor(), spare::recall_descriptor(), task.pair, log_descriptor()});
  spare::show();
  if (!drives) os::call(SYS_exit_group, 1);
}

// --- The one that serves

bool is_standing(const Standing& then) {
  return may_share(Standing::now(), then);
}

/// Gives rights up as the program does it, for all threads that drivers have made.
bool give_rights_up(const Standing& then) {
  const auto groups = libc<int(gid_t, gid_t, gid_t)>("setresgid"), users = libc<int(uid_t, uid_t, uid_t)>("setresuid");
  return groups(then.groups.real, then.groups.effective, then.groups.saved) == 0 &&
         users(then.users.real, then.users.effective, then.users.saved) == 0 && is_standing(then);
}

/// Whether the arena is ready. It is when the founder calls, and when another process has seen that before.
bool is_made(const arena::Spare& spare) {
  const std::uint32_t made = spare.made.load(std::memory_order_acquire);
  return made == arena::Spare::kSettled || made == arena::Spare::kDriven;
}

/// Whether no other process of the family is left, and no socket is open that a later process would bring. A process
/// that asks from here on whether there is a driver finds none. A process that has asked before has noted its sockets,
/// and comes.
bool ends_with_last() {
  if (socket::has_kin() || !spare::open_sockets().empty()) return false;
  spare::take_members(false);
  if (spare::open_sockets().empty()) return true;
  return !spare::take_members(true);
}

/// Serves the family. kDone: the family has ended. kAgain: the wire needs the rights. A listener stays as long as its
/// socket is open. The kernel does not tell when the last process closes the socket, so this looks at it while no
/// member has it.
End serve(Process& p, const Words& words) {
  constexpr std::int64_t kFirstLook = 1'000'000, kNextLooks = kSecond / 20;
  const std::atomic<std::uint32_t>& driver_calls = p.shard.wires().driver_calls;
  std::atomic<std::uint32_t>& looked = p.shard.wires().driver_looked;
  std::int64_t look = kFirstLook;
  for (;;) {
    const std::uint32_t seen = driver_calls.load(std::memory_order_acquire);
    // Dead processes do not have their sockets any more. Where no link is up, the last segments of their connections
    // would be lost, so the sweep waits.
    if (p.ports.any_link_is_up()) socket::sweep_family();
    hear_of_heirs(words, p.shard.wires().heir);
    const bool asks = socket::hold_sockets(spare::open_sockets) || !socket::has_kin();
    looked.store(seen, std::memory_order_release);
    os::futex_wake(reinterpret_cast<const std::uint32_t*>(&looked), INT_MAX);
    if (ends_with_last() || hand_back_if_recalled(p)) return kDone;
    if (p.ports.any_is_forbidden()) return kAgain;
    look = asks ? std::min(2 * look, kNextLooks) : kSecond;
    const std::int64_t longest = p.ports.any_link_is_up() ? look : std::min(look, kNextLooks);
    const long told = os::futex_wait(reinterpret_cast<const std::uint32_t*>(&driver_calls), seen, longest);
    if (told != -ETIMEDOUT || !asks) look = kFirstLook;
  }
}

/// Waits until the wire lets the process in, while it has rights.
void await_links(PortSet& ports) {
  constexpr timespec kLook{0, 5'000'000};
  for (int i = 0; i < 400 && !ports.is_linked_apart(); i++) os::call(SYS_nanosleep, os::address(&kLook), 0);
}

/// Waits until the founder has made the arena, or has called. False: the founder has ended.
bool await_founder(int pair, pid_t keeper) {
  char word = 0;
  const bool goes =
      os::call(SYS_write, pair, os::address(&keeper), sizeof keeper) == sizeof keeper && os::read(pair, &word, 1) == 1;
  os::close(pair);
  return goes;
}

/// Ends the family. What its last member has written may still be on its way.
void end_family(Process& p) {
  {
    socket::Guard guard(p.shard);
    socket::leave_family(guard);
  }
  deliver_rest(p);
}

/// Takes the ports for this process. A member that finds no process that makes drivers may be trying to open them
/// itself; it gives up soon if it cannot.
bool serve_apart(Process& p) {
  constexpr std::int64_t kLook = 20'000'000;  // ns
  constexpr int kLooks = 250;                 // 5 s of them: DPDK takes some tenths of a second
  const std::atomic<std::uint32_t>& openings = p.shard.wires().openings;
  for (int i = 0; i < kLooks; i++) {
    const std::uint32_t seen = openings.load(std::memory_order_acquire);
    if (p.ports.serve_apart(p.shard)) return true;
    if (p.shard.wires().open.load(std::memory_order_acquire)) return false;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&openings), seen, kLook);
  }
  return false;
}

End drive(Process& p, const Task& task) {
  introduce_to_heirs(task.server);
  renew_region();
  if (!spare::open_list() || !p.ports.open_apart()) return kFailed;
  if (task.pair < 0) await_links(p.ports);
  if (task.pair >= 0 && !await_founder(task.pair, task.keeper)) return kFailed;
  arena::Spare& spare = p.arena.spare;
  const Seen keeper = see(task.keeper);
  std::string problem;
  if (!give_rights_up(task.then) || !arena::map(spare::descriptor(), problem) || !is_made(spare)) return kFailed;
  p.shard.wires().keeper.set(keeper.pid, keeper.start_time);  // enter_arena() asks whether there is a keeper
  hear_of_heirs(task.words, p.shard.wires().heir);
  if (!p.shard.family().on_fork_child()) return kFailed;
  socket::enter_arena();
  if (!serve_apart(p)) return kDone;  // a process of the family has the ports
  p.shard.wires().driver.store(p.shard.wires().owner.load());
  (void)socket::hold_sockets(spare::open_sockets);
  spare.made.store(arena::Spare::kDriven, std::memory_order_release);
  if (!spare::take_members(true)) return kFailed;
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&spare.made), INT_MAX);
  if (!p.progress.start()) return kFailed;
  p.progress.join_family();
  hear_recalls(p);
  BYPASS_LOG_INFO("the ports are driven for a family that has given rights up");
  const End end = serve(p, task.words);
  if (end == kDone) end_family(p);
  p.progress.stop();
  p.ports.close(p.shard);
  p.shard.family().detach();
  remove_region();
  return end;
}

/// Removes a port's socket that nobody serves any more. It lies in a folder where the driver has no rights.
void remove_socket(const PortConfig& port) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (port.kind != "vhost" || port.target.size() >= sizeof name.sun_path) return;
  std::copy(port.target.begin(), port.target.end(), name.sun_path);
  const int fd = static_cast<int>(os::call(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd < 0) return;
  if (os::call(SYS_connect, fd, os::address(&name), sizeof name) == -ECONNREFUSED)
    os::call(SYS_unlink, os::address(name.sun_path));
  os::close(fd);
}

void remove_sockets(const Config& config) {
  for (const PortConfig& port : config.ports) remove_socket(port);
  for (const PortConfig& wire : config.soft) remove_socket(wire);
}

/// Forks a process that waits for the caller's place. In that process it returns true, when the process has the place.
/// The process does not know the caller's children.
bool make_heir(Task& task) {
  task.heir = fork_plainly();
  if (task.heir != 0) return false;
  if (task.pair >= 0) os::close(std::exchange(task.pair, -1));
  name_process(kHeirName);
  if (!spare::inherit_driving()) os::call(SYS_exit_group, kFailed);
  await_end(*task.server);
  name_process(kDriverName);
  return true;
}

/// Runs in the server. When it ends, the waiting processes end, too, except where the wire needs the rights.
[[noreturn]] void drive_and_end(Process& p, const Task& task) {
  const End end = drive(p, task);
  if (end != kAgain) tell_done(task.words);
  for (;;) os::call(SYS_exit_group, end);
}

/// Makes a server, again and again, until nothing is left to serve.
void keep_serving(Process& p, Task& task) {
  constexpr timespec kPause{0, 100'000'000};  // for servers that are killed at once
  pid_t server = 0;
  task.server = make_last_server();
  task.words = make_words();
  if (task.server == nullptr || task.words.heirs[1] < 0) task.heir = -1;
  for (int status = 0;;) {
    while (task.heir == 0) {
      if (make_heir(task)) server = 0;
      if (is_done(task.words)) return;
    }
    task.keeper = static_cast<pid_t>(os::getpid());
    tell_of_heir(task.words, task.heir);
    if (server == 0) server = fork_plainly();
    if (server == 0) drive_and_end(p, task);
    if (server < 0) return;
    if (task.pair >= 0) os::close(std::exchange(task.pair, -1));
    const long ended = os::call(SYS_wait4, -1, os::address(&status), __WALL, 0);
    if (ended < 0 && ended != -EINTR) return;
    const bool killed = ended > 0 && WIFSIGNALED(status);
    if (ended == server && !killed && WEXITSTATUS(status) != kAgain) return;
    if (ended == server) server = 0;
    if (ended == task.heir) task.heir = killed ? 0 : -1;
    if (killed) os::call(SYS_nanosleep, os::address(&kPause), 0);
  }
}

/// Waits for a call. False: nobody has called, or the ports are another process's.
bool await_call(Task& task) {
  const bool called = await_founder(std::exchange(task.pair, -1), static_cast<pid_t>(os::getpid()));
  return called && spare::begin_driving() && !spare::are_ports_claimed();
}

/// Runs in the keeper, which keeps the rights.
[[noreturn]] void keep(Process& p, Task task) {
  if (task.opens == Opens::kWhenCalled && !await_call(task)) os::call(SYS_exit_group, kFailed);
  keep_serving(p, task);
  if (task.heir > 0) os::kill(static_cast<std::uint32_t>(task.heir), SIGKILL);
  remove_sockets(p.config);
  for (;;) os::call(SYS_exit_group, 0);
}

/// The pid of the keeper, once its driver has opened the ports or waits to be called; 0: neither.
std::uint32_t await_open(int pair) {
  pollfd item{pair, POLLIN, 0};
  std::uint32_t keeper = 0;
  if (os::call(SYS_ppoll, os::address(&item), 1, os::address(&kPatience), 0, 8) != 1) return 0;
  return os::read(pair, &keeper, sizeof keeper) == sizeof keeper ? keeper : 0;
}

}  // namespace

Driver begin_driver(Process& process, const Standing& then, Opens opens, const char*& problem) {
  std::array<int, 2> pair{-1, -1};
  problem = "no process can be made that drives the ports";
  if (os::call(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, os::address(pair.data())) != 0) return {};
  pair = {own_high(pair[0]), own_high(pair[1])};
  const pid_t between = fork_unheard();
  if (between == 0) {  // when it ends, init (or a subreaper) adopts the driver
    const pid_t driver = fork_plainly();
    if (driver == 0) {
      own_descriptor(pair[0], false);
      os::close(pair[0]);
      const Task task{then, pair[1], opens};
      leave_program(process, task);
      keep(process, task);
    }
    os::call(SYS_exit_group, driver < 0 ? 1 : 0);
  }
  own_descriptor(pair[1], false);
  os::close(pair[1]);
  if (between > 0) reap(between);
  if (between > 0) problem = "the ports do not open beside it";
  const std::uint32_t keeper = between > 0 ? await_open(pair[0]) : 0;
  if (keeper != 0) return {pair[0], keeper, os::start_time_of(keeper)};
  own_descriptor(pair[0], false);
  os::close(pair[0]);
  return {};
}

void let_drive(Driver& driver) {
  // A driver that has been killed does not read any more, and the program must not get SIGPIPE.
  os::call(SYS_sendto, driver.pair, os::address(&kGo), 1, MSG_NOSIGNAL, 0, 0);
  drop_driver(driver);
}

void drop_driver(Driver& driver) {
  if (driver.pair < 0) return;
  own_descriptor(driver.pair, false);
  os::close(std::exchange(driver.pair, -1));
}

void let_wait(Process& process, Driver& driver) {
  process.shard.wires().keeper.set(driver.keeper, driver.keeper_start_time);
  spare::keep_call(std::exchange(driver.pair, -1), driver.keeper, driver.keeper_start_time);
}

}  // namespace bypass::runtime
