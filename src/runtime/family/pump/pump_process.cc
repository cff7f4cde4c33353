#include "runtime/family/pump/pump_process.h"

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
#include "os/own/own_work.h"
#include "runtime/family/pump/family_process.h"
#include "runtime/family/pump/pump.h"
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

/// Sends at once what is held back for more to come. Holding back is done on the program's side from here on.
void send_at_once(socket::File& pumped) {
  const int on = 1, off = 0;
  (void)socket::set_option(pumped, -1, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
  (void)socket::set_option(pumped, -1, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// What a pump is made with. `programs`: the program's end; below 0: another process has it, and nobody comes for it.
struct Task {
  int ours, programs, control;
  socket::File &pumped, &old;
  const PumpedSocket& as;
};

bool begin_as_pump(const Task& task) {
  const std::array kept{task.ours, task.programs};
  if (!leave_program("bypass-pump", kept, task.control) || !adopt_number(task.pumped, -1)) return false;
  socket::retain(task.old);
  end_fork_child();
  return true;
}

[[noreturn]] void be_pump(const Task& task) {
  char word = 0;
  const std::unique_ptr<Pump> pump(
      begin_as_pump(task) ? new (std::nothrow) Pump(task.pumped, task.old, task.ours, task.programs) : nullptr);
  const bool ready = pump != nullptr && pump->prepare() && os::call(SYS_write, task.control, os::address(&kGo), 1) == 1;
  // The process that moved the connection may have been killed before it said so. Others go on with the connection.
  if (ready && (os::read(task.control, &word, 1) == 1 || socket::has_connection(task.pumped))) {
    process()->region.why(observe::Reason::kPumped, -1, IPPROTO_TCP, task.as.name.remote, "by this process");
    send_at_once(task.pumped);
    const bool well = pump->run() && !task.as.aborts;
    socket::set_pumps_end(task.pumped, well ? socket::PumpsEnd::kCloses : socket::PumpsEnd::kAborts);
    socket::release(task.pumped, -1);
    before_exit();
  }
  end_family_process();
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
  UnixPair pair(SOCK_STREAM);
  if (!pair) return -1;
  static_cast<void>(os::call(SYS_write, pair[0], os::address(&kGo), 1));
  pair.close(1);
  return pair.take(0);
}

}  // namespace

namespace {

/// The ends of a pair between which a connection is to be pumped. `programs` below 0: the program has its end.
struct Ends {
  int ours, programs;
};

/// Has a process made that pumps the connection, which then moves to `pumped`. `control` stays open as long as that
/// process lives. Null: it is done.
const char* begin_pump(socket::File& file, socket::File& pumped, const PumpedSocket& as, const Ends& ends,
                       UnixPair& control) {
  const bool is_shared = socket::is_shared_with_kin(file);
  const Task task{ends.ours, ends.programs, control[1], pumped, file, as};
  const auto run = [](const void* what) { be_pump(*static_cast<const Task*>(what)); };
  const std::uint32_t pump = fork_family_process(control, &pumped, {run, &task});
  char ready = 0;
  if (pump == 0 || !hear(control[0], &ready, 1)) return "no process can be made that pumps it";
  PumpedAt at{pump, ends.programs, 0, static_cast<std::uint32_t>(os::pid_namespace())};
  if (ends.programs >= 0) at.inode = static_cast<std::uint32_t>(os::inode_of(ends.programs));
  // Others come for the end. The kernel refuses that for a process that has been another user's (PR_SET_DUMPABLE).
  if (is_shared) {
    const int got = get_descriptor(at);
    if (got < 0) return "pidfd_getfd(2) is refused";
    os::close(got);
  }
  if (!socket::is_pumpable(file)) return "it has ended, or a process cannot come for it";
  socket::move_to_pump(file, pumped, at);
  // A pump that has been killed reads no more, and the program is to have no signal for that.
  os::call(SYS_sendto, control[0], os::address(&kGo), 1, MSG_NOSIGNAL, 0, 0);
  BYPASS_LOG_INFO("a connection is pumped by process %u from here on", pump);
  return nullptr;
}

const char* const kNoMemory = "no memory for it";
const char* const kNoDescriptors = "no descriptors for it";

}  // namespace

const char* begin_pumping(socket::File& file, int* life) {
  PumpedSocket as;
  UnixPair ends(SOCK_STREAM), control(SOCK_STREAM);
  if (!ends || !control) return kNoDescriptors;
  socket::File* const pumped = socket::make_pumped(file, as);
  if (pumped == nullptr) return kNoMemory;
  const bool named = name_ends(ends[0], ends[1], as.name) && describe(ends[0], as);
  const char* const problem =
      named ? begin_pump(file, *pumped, as, {ends[1], ends[0]}, control) : "no socket of the kernel's can stand for it";
  if (problem == nullptr) keep_moved(file, ends.take(0));
  if (problem == nullptr && life != nullptr) *life = control.take(0);
  socket::release(*pumped, -1);
  return problem;
}

const char* begin_pumping_to(socket::File& file, int end, int& life) {
  PumpedSocket as;
  UnixPair control(SOCK_STREAM);
  if (!control) return kNoDescriptors;
  socket::File* const pumped = socket::make_pumped(file, as);
  if (pumped == nullptr) return kNoMemory;
  const char* const problem = begin_pump(file, *pumped, as, {end, -1}, control);
  if (problem == nullptr) life = control.take(0);
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

void pump_alone(void (*pump)(void* what), void* what) {
  pump_alone(*process(), [=] { pump(what); });
}

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
