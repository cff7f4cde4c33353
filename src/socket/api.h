// What src/preload calls: one function a verb, on objects instead of descriptors.
//
// Return values follow the system calls': a count or 0, or a negative errno (from errno_map.cc). Nothing here
// sets errno or raises SIGPIPE by itself: `send` returns -EPIPE and says through `sigpipe` whether Linux would
// have raised it. Nothing here takes a descriptor out of or into a table; `fd` arguments name the kernel
// descriptor (the shadow) under the program's number.
//
// Blocking calls are cancellation points and hold no lock while they wait. A blocking call spins (polling the
// shard), yields, then sleeps, by the profile. -EINTR is returned when a signal handler ran meanwhile
// (`signals_seen` moved), with SA_RESTART's rule left to the caller: see `Interrupted`.
// Tests: tests/socket/stream_test.cc, tests/socket/datagram_test.cc, tests/socket/epoll_test.cc.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "os/clock.h"
#include "os/kernel.h"
#include "os/message.h"
#include "stack/result.h"
#include "stack/time.h"

namespace bypass::socket {

/// What a descriptor number can stand for besides a plain kernel descriptor. Lies in the arena; references
/// are counted by process slot, one for each number of the process's table.
enum class FileKind : std::uint8_t { kStream, kListener, kDatagram, kEpoll };

struct File;    // file.h: kind, references, flags, readiness, the epoll items that watch it
struct Socket;  // socket.h: File and the protocol's half
struct Epoll;   // epoll.h

// --- Birth and death -------------------------------------------------------------------------------------

/// After the kernel's socket() gave `fd`: the object for an AF_INET/AF_INET6 stream or datagram socket when
/// this process accelerates anything, else null (the number is the kernel's alone from then on).
File* open_socket(int fd, int domain, int type, int protocol);
/// Whether that is a kind of socket that open_socket() takes: then null means that there was no memory for it.
bool is_our_kind(int domain, int type, int protocol);
/// After epoll_create1 gave `fd`. Null when this process accelerates nothing.
File* open_epoll(int fd);
/// A set that was made, and perhaps filled, where nobody saw it.
void note_unseen_items(File& epoll);
/// Remembers a number that names the object, for `bypass stat`.
void note_number(File& file, int fd);
/// One more number of this process names the object (dup, fork's child).
void retain(File& file);
/// A number is gone (close, dup2 over it, exec). The last one ends the object: the socket closes as SO_LINGER
/// says (`fd` is still open when this is called; the caller closes it after). -1: the number went first, while
/// another call was still inside the object.
/// `last` tells whether it was. May block for a lingering close.
int release(File& file, int fd);

/// The last number is about to be closed while a call is inside; release(file, -1) follows when it has left. Until
/// then the kernel's side of the object is reached by a descriptor of ours.
void number_closes(File& file, int fd);

[[nodiscard]] FileKind kind(const File& file);
/// Whether the object has been decided for the kernel: the caller then drops it from its table
/// (release with the descriptor kept), and the number is a plain kernel descriptor from then on.
[[nodiscard]] bool decided_for_kernel(const File& file);

// --- Names and connections -------------------------------------------------------------------------------

long bind(File& file, int fd, const sockaddr* address, socklen_t length);
long listen(File& file, int fd, int backlog);
long connect(File& file, int fd, const sockaddr* address, socklen_t length);

struct Accepted {
  File* file = nullptr;  // a bypass connection …
  int number = -1;       // … and the descriptor made for it, a duplicate of shadow_placeholder()
  int kernel_fd = -1;    // or a connection of the kernel's, with its descriptor
};
/// Takes a connection of either path. `flags`: SOCK_NONBLOCK, SOCK_CLOEXEC. `address`/`length` as accept4's.
long accept(File& file, int fd, sockaddr* address, socklen_t* length, int flags, Accepted& out);
/// A socket of the kernel's has a timeout below zero, which the kernel gives to what is accepted from it, and does not
/// tell: from here on accepted connections stay the kernel's.
void note_timeout_below_zero();
/// Whether adopt_accepted() may find anything: not without shared memory within the host.
[[nodiscard]] bool adopts_accepted();
/// A connection that accept() has given to the program, from the kernel's queue: an object when the process at its
/// other end may be libbypass on this host, else null (the number is the kernel's alone). `flags`: accept4's.
File* adopt_accepted(int fd, const sockaddr* peer, socklen_t length, int flags);
/// Before something is done with a number that only the kernel's own socket can do (exec, SCM_RIGHTS): what of the
/// connection lies in shared memory goes back to the kernel, and what is no connection yet never comes there. Of other
/// objects: nothing. kForRoom: where the kernel has no room for what was written, it waits, for a second at most.
enum class Wait : bool { kNot, kForRoom };
void leave_shared_memory(File& file, Wait wait = Wait::kForRoom);
/// The kernel has no number left for the program (EMFILE): some connections leave shared memory, whose channels have
/// numbers, and none comes there for a while. Whether there are more now.
bool spare_numbers();
/// leave_shared_memory() from a vfork child, which may do nothing with its parent's objects: the parent does it.
void ask_to_leave_shared_memory(File& file);
/// Whether the kernel's own socket under the number is where the bytes are.
[[nodiscard]] bool is_in_kernel(const File& file);
enum class Transfer : bool { kRead, kWrite };
/// What keeps others than us (libc's threads, the kernel's) from transferring by the number, once it has left: nothing,
/// 0; EAGAIN: bytes in shared memory come first, this process has to read them or they are on their way back to the
/// kernel; ENOSYS: the stack has it.
[[nodiscard]] int why_not_kernel(File& file, Transfer transfer);
/// From here on no connection of this process's comes to shared memory within the host. Those that are there go back to
/// the kernel, before it returns but for bytes that the peer wants again and the kernel has no room for.
void end_shared_memory();
/// After end_shared_memory(): the object is the kernel's from here on, for good. False: it has what the kernel has not,
/// or another thread waits for it. (An epoll set comes after the sockets in it.)
[[nodiscard]] bool give_up(File& file);

/// A socket descriptor whose duplicates stand for accepted connections (fstat says socket).
int shadow_placeholder(int domain);
/// In a forked child: the parent's are closed.
void forget_placeholders();

long shutdown(File& file, int fd, int how);
long local_name(File& file, int fd, sockaddr* address, socklen_t* length);
long peer_name(File& file, int fd, sockaddr* address, socklen_t* length);

// --- Bytes -----------------------------------------------------------------------------------------------

/// Before receive() and send(): a transfer that takes a copy and no more, of a connection within the host. A receive
/// that may block looks for some microseconds, where the thread's waits are as short, and is -EINTR where a handler has
/// run meanwhile. The count; nothing: call those, as if this had not been asked.
std::optional<long> receive_at_once(File& file, std::span<const iovec> data, int flags);
std::optional<long> send_at_once(File& file, std::span<const iovec> data, int flags);
long receive(File& file, int fd, Message& message, int flags);
/// The same into a header that check_header() has found well, with all that recvmsg(2) writes to it.
long receive_header(File& file, int fd, msghdr& header, int flags);
long send(File& file, int fd, const Message& message, int flags, bool& sigpipe);
/// recvmmsg and sendmmsg on one lock hold where possible: counts of messages.
long receive_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout);
long send_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, bool& sigpipe);
/// sendfile: bytes of `in_fd` at *offset (or its file position when null) into the socket.
long send_file(File& file, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
/// splice out of a pipe into a connection that is ours (has_splice()): up to `count` of the bytes that lie in it,
/// waited for unless `flags` has SPLICE_F_NONBLOCK or the pipe O_NONBLOCK; 0 at the pipe's end. -EINVAL: `pipe` is
/// none.
long splice_from_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe);
/// The other way: what has come and the pipe has room for, up to `count`; 0 where the peer has ended. -EPIPE with
/// `sigpipe`: nobody reads the pipe.
long splice_to_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe);
[[nodiscard]] bool has_splice(const File& file);

// --- Options ---------------------------------------------------------------------------------------------

long get_option(File& file, int fd, int level, int name, void* value, socklen_t* length);
long set_option(File& file, int fd, int level, int name, const void* value, socklen_t length);
/// FIONREAD, FIONBIO, SIOCOUTQ, SIOCATMARK …; nullopt: let the kernel answer on the shadow.
std::optional<long> control(File& file, int fd, unsigned long request, void* argument);
/// O_NONBLOCK and O_ASYNC as fcntl(F_SETFL) sets them; the open file description's, so shared by dup.
long status_flags(File& file, int fd);
long set_status_flags(File& file, int fd, int flags);
/// fcntl() with a command that says who is told of I/O by signal (sets_async()).
long set_async(File& file, int fd, int command, void* argument);
[[nodiscard]] bool sets_async(int command);

// --- Waiting ---------------------------------------------------------------------------------------------

/// poll's set with the objects already looked up: `file` null is a kernel descriptor (or a negative one).
struct PollItem {
  int fd = -1;
  short events = 0;
  short revents = 0;
  File* file = nullptr;
};
/// ppoll over a mixed set. `timeout` negative: for ever; the mask (may be null) holds while it sleeps, atomically.
long poll(std::span<PollItem> items, Duration timeout, const sigset_t* mask);

/// epoll_ctl on a set; `target` is null for a kernel descriptor.
long epoll_control(File& epoll, int epoll_fd, int operation, int fd, File* target, epoll_event* event);
/// timeout negative: for ever.
long epoll_wait(File& epoll, int epoll_fd, epoll_event* events, int count, Duration timeout, const sigset_t* mask);

// --- Signals ---------------------------------------------------------------------------------------------

/// src/preload wraps the program's handlers: the trampoline counts here, so that a spinning call sees that a
/// handler ran, and holds back asynchronous handlers while the thread is inside the lock (`in_lock`), to be
/// queued again by `leave_lock`'s caller, or ends the process (`ends`). All thread-local, initial-exec.
struct ThreadSignals {
  unsigned seen = 0;            // handlers that ran on this thread
  unsigned restart_seen = 0;    // … of them those installed with SA_RESTART
  volatile int in_lock = 0;     // depth of shard locks held
  volatile int held_back = 0;   // signals waiting for the lock to be left
  volatile bool ends = false;   // what the process's numbers name has ended, or is about to: no handler may use it
  bool serves_the_end = false;  // delivers what is left when the process ends; the others stop: Shard::end_for_others
  // The stack for handlers (sigaltstack(2)) that the thread had when the last one ran; 0: none.
  std::uintptr_t handlers_low = 0, handlers_high = 0;
  // The frames of handlers that run, or have been left by a jump; the innermost is the last. More than there are places
  // for share the last one.
  static constexpr unsigned kHandlers = 8;
  std::uintptr_t handler_frames[kHandlers] = {};
  unsigned handlers = 0;
  std::atomic<Epoll*>* kernel_set = nullptr;  // the thread's Waiter::kernel_set, once it has one
};
extern constinit thread_local ThreadSignals thread_signals;  // constinit: no call to see whether it is made

/// Whether what has a frame at `frame` of this thread is gone, jumped out of (siglongjmp() in a handler), as seen from
/// what runs now, at `here`: stacks grow downwards, and a handler on a stack of its own stands on top of calls on
/// another.
[[nodiscard]] inline bool is_abandoned(std::uintptr_t frame, std::uintptr_t here) {
  const auto is_of_handlers = [](std::uintptr_t address) {
    return address >= thread_signals.handlers_low && address < thread_signals.handlers_high;
  };
  return is_of_handlers(frame) == is_of_handlers(here) ? frame <= here : is_of_handlers(frame);
}

/// Where a call begins, with a frame at `here`: whether a handler has been left by a jump, and with it the calls that
/// it had interrupted. Known where `here` is above the handler's frame.
[[nodiscard]] inline bool has_left_handler(std::uintptr_t here) {
  const unsigned n = thread_signals.handlers;
  return n != 0 &&
         is_abandoned(thread_signals.handler_frames[(n < ThreadSignals::kHandlers ? n : ThreadSignals::kHandlers) - 1],
                      here);
}
/// Forgets such handlers. Calls are gone that are so as seen from the result, the frame of the innermost handler that
/// runs.
std::uintptr_t forget_left_handlers(std::uintptr_t here);
/// Undoes what such calls held of objects.
void drop_left(std::uintptr_t bound);

/// Before a handler of the program runs on this thread: the thread's sleep, if it stands on top of one, is over, so
/// that nothing of it stays registered when the handler does not come back.
void end_sleep();

/// Called after the lock has been left when held_back is set; src/preload queues the signals again.
extern void (*redeliver_signals)();

/// A wait for a set that has nothing of ours: the program's own call is made while this lives.
class KernelSleep {
 public:
  /// `sleeps`: the call may wait.
  KernelSleep(File& epoll, bool sleeps);
  ~KernelSleep() { wake(); }
  KernelSleep(const KernelSleep&) = delete;
  KernelSleep& operator=(const KernelSleep&) = delete;

  /// False: the set has something of ours, and the wait is epoll_wait()'s.
  explicit operator bool() const { return usable_; }
  /// What the call has returned, for the program. Nothing: no event was its own, and something of ours has come into
  /// the set; the rest of the wait is epoll_wait()'s. `number` is the set's.
  [[nodiscard]] std::optional<int> told(int number, epoll_event* events, int count) {
    if (count <= 0 || !has_called_->load(std::memory_order_relaxed)) [[likely]]
      return count;
    return told_of_calls(number, events, count);
  }

 private:
  std::optional<int> told_of_calls(int number, epoll_event* events, int count);
  // In a child that a handler has forked on top of the sleep, the record is the parent's.
  void wake() {
    if (place_ != nullptr && thread_signals.kernel_set == place_) place_->store(beneath_, std::memory_order_release);
    place_ = nullptr;
  }

  Epoll& set_;
  const std::atomic<bool>* has_called_ = nullptr;
  std::atomic<Epoll*>* place_ = nullptr;  // Waiter::kernel_set
  Epoll* beneath_ = nullptr;              // of the call that a handler's one stands on
  bool usable_ = false;
};

}  // namespace bypass::socket
