// What src/preload calls: one function for each kind of call, on objects instead of descriptors.
//
// Return values follow the system calls': a count or 0, or a negative errno (from errno_map.cc). Nothing here sets
// errno or raises SIGPIPE: `send` returns -EPIPE, and sets `sigpipe` if Linux would have raised it. Nothing here puts a
// descriptor into a table or takes one out; `fd` arguments name the kernel descriptor (the shadow) under the program's
// number.
//
// Blocking calls are cancellation points and hold no lock while they wait. A blocking call spins (polling the shard),
// then yields, then sleeps, as the profile says. It returns -EINTR if a signal handler ran meanwhile
// (`thread_signals.seen` has changed). The caller applies SA_RESTART's rule.
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

/// What a descriptor number can stand for besides a plain kernel descriptor. It lies in the arena. References are
/// counted for each process slot, one for each number in the process's table.
enum class FileKind : std::uint8_t { kStream, kListener, kDatagram, kEpoll };

struct File;    // file.h: kind, references, flags, readiness, the epoll items that watch it
struct Socket;  // socket.h: File and the protocol's half
struct Epoll;   // epoll.h

// --- Birth and death -------------------------------------------------------------------------------------

/// To be called after the kernel's socket() gave `fd`. Returns the object for an AF_INET/AF_INET6 stream or datagram
/// socket if this process accelerates anything. Null: only the kernel has the number from then on.
File* open_socket(int fd, int domain, int type, int protocol);
/// Whether open_socket() takes this kind of socket. If so, its null means that there was no memory.
bool is_our_kind(int domain, int type, int protocol);
/// To be called after epoll_create1() gave `fd`. Null if this process accelerates nothing.
File* open_epoll(int fd);
/// The set was made, and perhaps filled, by calls that we did not see.
void note_unseen_items(File& epoll);
/// Stores a number that names the object, for `bypass stat`.
void note_number(File& file, int fd);
/// One more number of this process names the object (dup, a forked child).
void retain(File& file);
/// A number is gone (close, dup2 over it, exec). With the last number the object ends: the socket closes as SO_LINGER
/// says (`fd` is still open during this call; the caller closes it afterwards). -1: the number went first, while
/// another call still used the object. May block for a lingering close.
int release(File& file, int fd);

/// The last number is about to be closed while a call uses the object; release(file, -1) follows when that call has
/// left. Until then a descriptor of ours gives access to the object's kernel side.
void number_closes(File& file, int fd);

[[nodiscard]] FileKind kind(const File& file);
/// Whether the object was decided for the kernel. The caller then drops it from its table (release with the descriptor
/// kept), and the number is a plain kernel descriptor from then on.
[[nodiscard]] bool decided_for_kernel(const File& file);

// --- Names and connections -------------------------------------------------------------------------------

long bind(File& file, int fd, const sockaddr* address, socklen_t length);
/// For a new object of a stream whose kernel socket another process has bound, if it has. `is_free`: to an address that
/// the kernel has not.
void adopt_bound(File& file, int fd, bool is_free);
/// The number of a stream that is undecided names a socket of the kernel's by now, in its place. Epoll sets that have
/// the object watch the number instead.
void give_number_to_kernel(File& file);
/// For listen() and connect(): kRelayed means that a relay is to do the call.
long listen(File& file, int fd, int backlog);
long connect(File& file, int fd, const sockaddr* address, socklen_t length);

struct Accepted {
  File* file = nullptr;  // a bypass connection …
  int number = -1;       // … and the descriptor made for it, a duplicate of shadow_placeholder()
  int kernel_fd = -1;    // or a connection of the kernel's, with its descriptor
};
/// Takes a connection of either path. `flags`: SOCK_NONBLOCK, SOCK_CLOEXEC. `address`/`length` as accept4's.
long accept(File& file, int fd, sockaddr* address, socklen_t* length, int flags, Accepted& out);
/// A kernel socket has a timeout below zero. The kernel passes it on to accepted sockets but does not report it. So
/// from now on accepted connections stay with the kernel.
void note_timeout_below_zero();
/// Whether adopt_accepted() may find anything: only with shared memory within the host.
[[nodiscard]] bool adopts_accepted();
/// For a connection from the kernel's queue that accept() has given to the program. Returns an object if the process at
/// the other end may use libbypass on this host. Null: only the kernel has the number. `flags`: accept4's.
File* adopt_accepted(int fd, const sockaddr* peer, socklen_t length, int flags);
/// To be called before something is done with a number that only the kernel's own socket can do (exec, SCM_RIGHTS). A
/// connection's bytes in shared memory go back to the kernel; a socket that is not connected yet never uses shared
/// memory. Other objects are not changed. kForRoom: if the kernel has no room for the bytes, waits at most a second.
enum class Wait : bool { kNot, kForRoom };
void leave_shared_memory(File& file, Wait wait = Wait::kForRoom);
/// The kernel has no number left for the program (EMFILE). Some connections, whose channels use numbers, leave shared
/// memory, and none comes there for a while. Returns whether there are numbers now.
bool spare_numbers();
/// leave_shared_memory() for a vfork child, which may not touch its parent's objects: the parent does it.
void ask_to_leave_shared_memory(File& file);
/// Whether the bytes are in the kernel's own socket under the number.
[[nodiscard]] bool is_in_kernel(const File& file);
enum class Transfer : bool { kRead, kWrite };
/// Why others than us (libc's threads, the kernel) must not transfer by the number. 0: they may. EAGAIN: bytes in
/// shared memory come first; this process has to read them, or they are on their way back to the kernel. ENOSYS: the
/// stack has the connection.
[[nodiscard]] int why_not_kernel(File& file, Transfer transfer);
/// From now on no connection of this process uses shared memory within the host. Those that do go back to the kernel
/// before this returns. The exception are bytes that the peer wants again and the kernel has no room for.
void end_shared_memory();
/// To be called after end_shared_memory(): the kernel has the object from now on, for good. False: the object has
/// something that the kernel does not have, or another thread waits for it. (Give up an epoll set after the sockets in
/// it.)
[[nodiscard]] bool give_up(File& file);

/// A socket descriptor whose duplicates stand for accepted connections (so that fstat reports a socket).
int shadow_placeholder(int domain);
/// In a forked child: the parent's placeholders are closed.
void forget_placeholders();

long shutdown(File& file, int fd, int how);
long local_name(File& file, int fd, sockaddr* address, socklen_t* length);
long peer_name(File& file, int fd, sockaddr* address, socklen_t* length);

// --- Bytes -----------------------------------------------------------------------------------------------

/// To be tried before receive() and send(): a transfer that only copies, for a connection within the host or a stream.
/// A receive that may block looks for some microseconds if the thread's waits are that short, and returns -EINTR if a
/// handler has run meanwhile. Nullopt: call receive() or send() as if this had not been called.
std::optional<long> receive_at_once(File& file, std::span<const iovec> data, int flags);
std::optional<long> send_at_once(File& file, std::span<const iovec> data, int flags);
long receive(File& file, int fd, Message& message, int flags);
/// The same into a header that check_header() has accepted; writes everything that recvmsg(2) writes to it.
long receive_header(File& file, int fd, msghdr& header, int flags);
long send(File& file, int fd, const Message& message, int flags, bool& sigpipe);
/// recvmmsg and sendmmsg on one lock hold where possible: counts of messages.
long receive_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout);
long send_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, bool& sigpipe);
/// sendfile: moves bytes of `in_fd`, from *offset (or from its file position if null), into the socket.
long send_file(File& file, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
/// splice from a pipe into a connection of ours (has_splice()): up to `count` of the bytes in the pipe. It waits for
/// bytes unless `flags` has SPLICE_F_NONBLOCK or the pipe has O_NONBLOCK. 0 at the pipe's end. -EINVAL: `pipe` is no
/// pipe.
long splice_from_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe);
/// The other direction: moves received bytes for which the pipe has room, up to `count`; 0 if the peer has ended.
/// -EPIPE with `sigpipe`: the pipe has no reader.
long splice_to_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe);
[[nodiscard]] bool has_splice(const File& file);

// --- Options ---------------------------------------------------------------------------------------------

long get_option(File& file, int fd, int level, int name, void* value, socklen_t* length);
long set_option(File& file, int fd, int level, int name, const void* value, socklen_t length);
/// FIONREAD, FIONBIO, SIOCOUTQ, SIOCATMARK …; nullopt: let the kernel answer on the shadow.
std::optional<long> control(File& file, int fd, unsigned long request, void* argument);
/// O_NONBLOCK and O_ASYNC as fcntl(F_SETFL) sets them. They belong to the open file description, so dup shares them.
long status_flags(File& file, int fd);
long set_status_flags(File& file, int fd, int flags);
/// fcntl() with a command that sets which process gets signals for I/O (sets_async()).
long set_async(File& file, int fd, int command, void* argument);
[[nodiscard]] bool sets_async(int command);

// --- Waiting ---------------------------------------------------------------------------------------------

/// An item of poll's set, with its object looked up: if `file` is null, it is a kernel descriptor (or a negative one).
struct PollItem {
  int fd = -1;
  short events = 0;
  short revents = 0;
  File* file = nullptr;
};
/// ppoll() over a mixed set. `timeout` negative: no limit. The mask (may be null) is set atomically while it sleeps.
long poll(std::span<PollItem> items, Duration timeout, const sigset_t* mask);

/// epoll_ctl on a set; `target` is null for a kernel descriptor.
long epoll_control(File& epoll, int epoll_fd, int operation, int fd, File* target, epoll_event* event);
/// `timeout` negative: no limit.
long epoll_wait(File& epoll, int epoll_fd, epoll_event* events, int count, Duration timeout, const sigset_t* mask);

// --- Signals ---------------------------------------------------------------------------------------------

/// src/preload wraps the program's handlers. The wrapper counts here, so that a spinning call sees that a handler ran.
/// While the thread is inside the lock (`in_lock`), the wrapper holds asynchronous handlers back. After the unlock
/// redeliver_signals() queues their signals again, or the process ends (`ends`). All is thread-local, initial-exec.
struct ThreadSignals {
  unsigned seen = 0;           // handlers that ran on this thread
  unsigned restart_seen = 0;   // those of them that were installed with SA_RESTART
  volatile int in_lock = 0;    // depth of shard locks held
  volatile int held_back = 0;  // signals waiting for the lock to be left
  volatile bool ends = false;  // the process's objects have ended, or are about to: no handler may use them
  // this thread delivers the remaining bytes at the process's end; others stop: Shard::end_for_others
  bool serves_the_end = false;
  // The stack for handlers (sigaltstack(2)) that the thread had when the last handler ran; 0: none.
  std::uintptr_t handlers_low = 0, handlers_high = 0;
  // The frames of handlers that run, or were left by a jump; the innermost is the last. If there are more than places,
  // they share the last place.
  static constexpr unsigned kHandlers = 8;
  std::uintptr_t handler_frames[kHandlers] = {};
  unsigned handlers = 0;
  std::atomic<Epoll*>* kernel_set = nullptr;  // the thread's Waiter::kernel_set, once it has a Waiter
};
extern constinit thread_local ThreadSignals thread_signals;  // constinit: no call to see whether it is made

/// Whether the function with a frame at `frame` of this thread no longer exists, because siglongjmp() in a handler
/// jumped out of it. `here`: the frame of the code that asks. Stacks grow downwards, and a handler on a stack of its
/// own interrupts calls on another.
[[nodiscard]] inline bool is_abandoned(std::uintptr_t frame, std::uintptr_t here) {
  const auto is_of_handlers = [](std::uintptr_t address) {
    return address >= thread_signals.handlers_low && address < thread_signals.handlers_high;
  };
  return is_of_handlers(frame) == is_of_handlers(here) ? frame <= here : is_of_handlers(frame);
}

/// To be called where a call begins, with a frame at `here`: whether a handler was left by a jump, and with it the
/// calls that it had interrupted. This is known if `here` is above the handler's frame.
[[nodiscard]] inline bool has_left_handler(std::uintptr_t here) {
  const unsigned n = thread_signals.handlers;
  return n != 0 &&
         is_abandoned(thread_signals.handler_frames[(n < ThreadSignals::kHandlers ? n : ThreadSignals::kHandlers) - 1],
                      here);
}
/// Forgets such handlers. Returns the frame of the innermost handler that still runs: as seen from there, abandoned
/// calls can be found.
std::uintptr_t forget_left_handlers(std::uintptr_t here);
/// Undoes what such calls held of objects.
void drop_left(std::uintptr_t bound);

/// To be called before a handler of the program runs on this thread. If it interrupts a sleep of the thread, the sleep
/// ends here: so nothing stays registered if the handler does not return.
void end_sleep();

/// Called after the lock was left with held_back set; src/preload queues the signals again.
extern void (*redeliver_signals)();

/// A wait for a set that has no object of ours: the program's own call is made while this object lives.
class KernelSleep {
 public:
  /// `sleeps`: the call may wait.
  KernelSleep(File& epoll, bool sleeps);
  ~KernelSleep() { wake(); }
  KernelSleep(const KernelSleep&) = delete;
  KernelSleep& operator=(const KernelSleep&) = delete;

  /// False: the set has an object of ours, and epoll_wait() must do the wait.
  explicit operator bool() const { return usable_; }
  /// The result of the call for the program. Nullopt: no event was the program's, and an object of ours has come into
  /// the set; epoll_wait() must do the rest of the wait. `number` is the set's.
  [[nodiscard]] std::optional<int> told(int number, epoll_event* events, int count) {
    if (count <= 0 || !has_called_->load(std::memory_order_relaxed)) [[likely]]
      return count;
    return told_of_calls(number, events, count);
  }

 private:
  std::optional<int> told_of_calls(int number, epoll_event* events, int count);
  // In a child that a handler forked during the sleep, the record belongs to the parent.
  void wake() {
    if (place_ != nullptr && thread_signals.kernel_set == place_) place_->store(beneath_, std::memory_order_release);
    place_ = nullptr;
  }

  Epoll& set_;
  const std::atomic<bool>* has_called_ = nullptr;
  std::atomic<Epoll*>* place_ = nullptr;  // Waiter::kernel_set
  Epoll* beneath_ = nullptr;              // the interrupted call's, if a handler makes this call
  bool usable_ = false;
};

}  // namespace bypass::socket
