#include "runtime/family/pump_process.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <array>
#include <memory>
#include <new>
#include <utility>

#include "os/log/log.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_descriptors.h"
#include "os/own/own_work.h"
#include "runtime/family/own_process.h"
#include "runtime/family/pump.h"
#include "runtime/family/standing.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/undisturbed.h"
#include "socket/family/kin.h"
#include "socket/family/pumped.h"

namespace bypass::runtime {

namespace {

using socket::kernel;
using socket::PumpedAt;
using socket::PumpedSocket;

constexpr char kGo = 'g';
constexpr timespec kPatience{10, 0};

/// A pair of Unix sockets. An end that is not given away is closed.
struct Pair {
  explicit Pair() {
    if (os::call(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, os::address(fd.data())) != 0) fd = {-1, -1};
  }
  ~Pair() {
    close(0);
    close(1);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  explicit operator bool() const { return fd[0] >= 0; }
  int take(std::size_t i) { return std::exchange(fd[i], -1); }
  void close(std::size_t i) {
    if (fd[i] >= 0) os::close(take(i));
  }

  std::array<int, 2> fd{-1, -1};
};

template <typename T>
void set(int fd, int name, const T& value) {
  kernel->setsockopt(fd, SOL_SOCKET, name, &value, sizeof value);
}

void set_timeout(int fd, int name, std::uint32_t milliseconds) {
  if (milliseconds == 0) return;
  const bool none = milliseconds == ~0U;
  set(fd, name,
      timeval{none ? -1 : static_cast<time_t>(milliseconds / 1000),
              static_cast<suseconds_t>(none ? 0 : milliseconds % 1000 * 1000)});
}

/// Names an end. Each end's name holds both addresses: getpeername() reads the other end's.
bool name_end(int fd, const socket::PumpName& as) {
  sockaddr_un name;
  const socklen_t length = socket::write_pump_name(as, name);
  return kernel->bind(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0;
}

bool name_ends(int programs, int pumps, socket::PumpName as) {
  using End = socket::PumpName::End;
  if (!os::fill_random(&as.serial, sizeof as.serial)) return false;
  as.end = End::kPrograms;
  if (!name_end(programs, as)) return false;
  as.end = End::kPumps;
  return name_end(pumps, as);
}

/// The program's end, as the connection was. Its send buffer has room for one message that stays there (pump.h).
bool describe(int fd, const PumpedSocket& as) {
  constexpr int kSendBytes = 512 << 10;
  set(fd, SO_SNDBUF, kSendBytes);
  set(fd, SO_SNDBUFFORCE, kSendBytes);
  set(fd, SO_RCVLOWAT, static_cast<int>(as.low_water));
  set(fd, SO_KEEPALIVE, static_cast<int>(as.keep_alive));
  set_timeout(fd, SO_RCVTIMEO, as.receive_timeout_ms);
  set_timeout(fd, SO_SNDTIMEO, as.send_timeout_ms);
  if (as.aborts) set(fd, SO_LINGER, ::linger{1, 0});
  if (kernel->write(fd, &kGo, 1) != 1) return false;
  if (as.shut_receive) kernel->shutdown(fd, SHUT_RD);
  if (as.shut_send) kernel->shutdown(fd, SHUT_WR);
  return kernel->fcntl(fd, F_SETFL, static_cast<int>(as.status)) == 0;
}

/// The descriptors with which the pump is made.
struct Ends {
  int ours, programs, control;
};

/// Lets go of everything of the program's, except what the pump needs.
bool leave_program(Ends& ends, socket::File& pumped, socket::File& old) {
  constexpr const char* kName = "bypass-pump";
  name_process(kName);
  leave_group();
  ignore_signals();
  stay_inside();
  const auto own = [&](bool ours) {
    for (const int fd : {ends.ours, ends.programs, ends.control}) own_descriptor(fd, ours);
  };
  own(true);
  close_others_descriptors();
  for (int fd = 0; fd < 3; fd++)
    if (!owns_descriptor(fd)) os::call(SYS_dup2, ends.control, fd);
  own(false);
  if (!after_fork_child()) return false;
  if (!adopt_number(pumped, -1)) return false;
  socket::retain(old);
  end_fork_child();
  return true;
}

/// Sends at once what is held back for more to come. Holding back is done on the program's side from here on.
void send_at_once(socket::File& pumped) {
  const int on = 1, off = 0;
  (void)socket::set_option(pumped, -1, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
  (void)socket::set_option(pumped, -1, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

[[noreturn]] void be_pump(Ends ends, socket::File& pumped, socket::File& old, const PumpedSocket& as) {
  const auto pid = os::getpid();
  char word = 0;
  os::call(SYS_write, ends.control, os::address(&pid), sizeof pid);
  const bool is_out = leave_program(ends, pumped, old);
  const std::unique_ptr<Pump> pump(is_out ? new (std::nothrow) Pump(pumped, old, ends.ours, ends.programs) : nullptr);
  const bool ready = pump != nullptr && pump->prepare() && os::call(SYS_write, ends.control, os::address(&kGo), 1) == 1;
  // The process that moved the connection may have been killed before it said so. Others go on with the connection.
  if (ready && (os::read(ends.control, &word, 1) == 1 || socket::has_connection(pumped))) {
    process()->region.why(observe::Reason::kPumped, -1, IPPROTO_TCP, as.name.remote, "by this process");
    send_at_once(pumped);
    const bool well = pump->run() && !as.aborts;
    socket::set_pumps_end(pumped, well ? socket::PumpsEnd::kCloses : socket::PumpsEnd::kAborts);
    socket::release(pumped, -1);
    before_exit();
  }
  for (;;) os::call(SYS_exit_group, 0);
}

bool hear(int control, void* word, std::size_t bytes) {
  pollfd item{control, POLLIN, 0};
  if (os::call(SYS_ppoll, os::address(&item), 1, os::address(&kPatience), 0, 8) != 1) return false;
  return os::read(control, word, bytes) == static_cast<long>(bytes);
}

/// Forks the pump. Returns its pid; 0: there is none.
std::uint32_t fork_pump(const Ends& ends, int control, socket::File& pumped, socket::File& old,
                        const PumpedSocket& as) {
  prepare_fork();
  share_with_child(pumped);
  const pid_t between = fork_unheard();
  if (between == 0) {  // when it ends, init (or a subreaper) adopts the pump
    const pid_t pump = fork_plainly();
    if (pump == 0) {
      os::close(control);
      be_pump(ends, pumped, old, as);
    }
    os::call(SYS_exit_group, pump < 0 ? 1 : 0);
  }
  os::close(ends.control);
  std::uint32_t pid = 0;
  const bool made = between > 0 && hear(control, &pid, sizeof pid);
  after_fork_parent(made ? static_cast<int>(pid) : -1);
  if (between > 0) reap(between);
  return made ? pid : 0;
}

/// ESRCH: the pump has ended, or has closed it, or another process has its pid by now. Another error: the end is there.
/// A program may have put its rights aside, as a server does that serves a user by seteuid().
int get_descriptor(const PumpedAt& at) {
  const PermittedRights rights;
  const auto process = static_cast<int>(os::pidfd_open(at.pid));
  if (process < 0) return process;
  const auto got = static_cast<int>(os::call(SYS_pidfd_getfd, process, at.number, 0));
  os::close(process);
  if (got < 0) return got == -EBADF ? -ESRCH : got;
  if (static_cast<std::uint32_t>(os::inode_of(got)) == at.inode) return got;
  os::close(got);
  return -ESRCH;
}

/// The program's end of a connection that this process has just moved, and the object that it is of. Its one thread
/// takes it at once.
int g_moved_end = -1;
const socket::File* g_moved = nullptr;

void keep_moved(const socket::File& file, int end) {
  if (g_moved_end >= 0) os::close(g_moved_end);
  g_moved_end = end;
  g_moved = &file;
}

/// Of another pid namespace the numbers of this one name other processes, or none.
bool is_named_here(const PumpedAt& at) {
  const auto here = static_cast<std::uint32_t>(os::pid_namespace());
  return at.pid_namespace == here || at.pid_namespace == 0 || here == 0;
}

/// Makes the end that a program gets for a connection that has been reset.
int make_reset() {
  Pair pair;
  if (!pair) return -1;
  static_cast<void>(os::call(SYS_write, pair.fd[0], os::address(&kGo), 1));
  pair.close(1);
  return pair.take(0);
}

}  // namespace

const char* begin_pumping(socket::File& file) {
  PumpedSocket as;
  Pair ends, control;
  if (!ends || !control) return "no descriptors for it";
  socket::File* const pumped = socket::make_pumped(file, as);
  if (pumped == nullptr) return "no memory for it";
  const bool is_shared = socket::is_shared_with_kin(file);
  const bool named = name_ends(ends.fd[0], ends.fd[1], as.name);
  const char* problem = named && describe(ends.fd[0], as) ? nullptr : "no socket of the kernel's can stand for it";
  if (problem == nullptr) {
    const std::uint32_t pump = fork_pump({ends.fd[1], ends.fd[0], control.take(1)}, control.fd[0], *pumped, file, as);
    char ready = 0;
    const PumpedAt at{pump, ends.fd[0], static_cast<std::uint32_t>(os::inode_of(ends.fd[0])),
                      static_cast<std::uint32_t>(os::pid_namespace())};
    if (pump == 0 || !hear(control.fd[0], &ready, 1)) problem = "no process can be made that pumps it";
    // Others come for the end. The kernel refuses that for a process that has been another user's (PR_SET_DUMPABLE).
    if (problem == nullptr && is_shared) {
      const int got = get_descriptor(at);
      if (got >= 0) os::close(got);
      if (got < 0) problem = "pidfd_getfd(2) is refused";
    }
    if (problem == nullptr && !socket::is_pumpable(file)) problem = "it has ended, or a process cannot come for it";
    if (problem == nullptr) {
      socket::move_to_pump(file, *pumped, at);
      keep_moved(file, ends.take(0));
      // A pump that has been killed reads no more, and the program is to have no signal for that.
      os::call(SYS_sendto, control.fd[0], os::address(&kGo), 1, MSG_NOSIGNAL, 0, 0);
      BYPASS_LOG_INFO("a connection is pumped by process %u from here on", pump);
    }
  }
  socket::release(*pumped, -1);
  return problem;
}

void report_unpumped(const char* problem) {
  BYPASS_LOG_INFO("a connection is not pumped: %s", problem);
}

bool pump_connections(Process& process, void (*pump_numbers)()) {
  if (!socket::has_pumpable_alone()) return false;
  const bool progressed = process.progress.runs();
  process.progress.vanish();
  if (has_one_thread()) pump_numbers();
  return progressed;
}

namespace {

/// Calls `pump()` while the process has one thread.
template <typename Act>
void pump_alone(Process& process, const Act& pump) {
  const Undisturbed undisturbed;
  const bool progressed = process.progress.runs();
  process.progress.vanish();
  if (has_one_thread()) pump();
  if (progressed) resume_threads();  // a process that spawns goes on, and so does one whose exec fails
}

}  // namespace

void pump_before_exec(void (*pump_numbers)()) {
  Process* const p = process();
  if (p == nullptr || !accelerates() || socket::is_in_handler() || !socket::refers_to_wire()) return;
  const Inside inside;
  if (p->shard.family().has_living_kin()) pump_alone(*p, pump_numbers);
}

void pump_before_passing(int fd, void (*pump_number)(int fd)) {
  Process* const p = process();
  if (p == nullptr || !accelerates() || socket::is_in_handler()) return;
  const Inside inside;
  pump_alone(*p, [=] { pump_number(fd); });
}

int fetch_pumped(socket::File& file) {
  if (&file == g_moved && g_moved_end >= 0) return std::exchange(g_moved_end, -1);
  const PumpedAt at = socket::where_pumped(file);
  const int got = at.pid == 0 ? -ESRCH : is_named_here(at) ? get_descriptor(at) : -EPERM;
  return got == -ESRCH ? make_reset() : got;
}

}  // namespace bypass::runtime
