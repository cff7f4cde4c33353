// Pumped: numbers whose connection a process of ours has by now (runtime/family/pump/pump_process.h). Such a number is
// to name a socket of the kernel's, which takes its place before the next call on it: from then on the calls are the
// kernel's. What a Unix socket cannot say of itself as a TCP one is said here.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <optional>

#include "os/pump_name.h"
#include "preload/straight.h"
#include "preload/uses.h"

namespace bypass::preload {

/// Gives the number to the kernel's socket. `entry`: what the number names, for which is_pumped() is true. False: the
/// number still names it. Either the process can have no more descriptors, or a vfork child asks, whose numbers are its
/// own. Then no call may reach the kernel's descriptor under that number.
[[nodiscard]] bool exchange_pumped_number(int fd, Entry entry);
/// The same for a number that may name a pumped connection. Returns whether it did.
inline bool exchange_if_pumped(int fd) {
  const Entry entry = fd_table.load(fd);
  if (entry.empty() || !is_pumped(entry)) [[likely]]
    return false;
  return exchange_pumped_number(fd, entry);
}
/// The same for a number that a call names. A thread that goes straight to the kernel does not look: its number is a
/// vfork child's own, or the library's. In the library's own processes the object that it named may be gone.
inline bool exchange_called_number(int fd) {
  return !goes_straight() && exchange_if_pumped(fd);
}
/// The number whose place the kernel's socket takes now, or -1.
extern std::atomic<int> number_in_exchange;
void await_exchange();
/// Called after a number was taken out of the table, before it is closed or gets another socket. When it returns, the
/// kernel's socket is not put there any more.
inline void await_exchange_of(int fd) {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // with that of the exchange: one sees the other
  if (number_in_exchange.load(std::memory_order_relaxed) == fd) [[unlikely]]
    await_exchange();
}
/// Gives the number to a socket of the kernel's, which stays open as `end`, too. False: another thread was faster.
[[nodiscard]] bool give_number_to(int fd, Entry entry, int end);
/// exchange_if_pumped() for all numbers.
void exchange_all_pumped();
/// Called before a filter of system calls that forbids what exchange_pumped_number() needs. That is done for all
/// numbers now. From here on no process may have the other connections pumped.
void forbid_pumps();
/// Called in a forked child.
void forget_taking_after_fork();
/// Whether the connection moved before the call had done anything (`result` says so), and the number now names the
/// kernel's socket. Then the call must be made there. If there is no descriptor for that, `result` becomes ENOBUFS.
[[nodiscard]] bool has_moved_to_kernel(const Use& use, int fd, long& result);
/// What has moved while a blocking call of several pieces was inside, and no handler interrupted it: the call goes on
/// in the kernel, with what is left.
class Onward {
 public:
  Onward(const Use& use, int fd) : use_(use), fd_(fd) {}
  /// `flags` are the call's (MSG_DONTWAIT).
  [[nodiscard]] bool goes_on(int flags) const {
    if (!is_pumped(use_.entry())) [[likely]]
      return false;
    return (flags & MSG_DONTWAIT) == 0 && socket::thread_signals.seen == before_ && is_blocking_there();
  }

 private:
  [[nodiscard]] bool is_blocking_there() const;

  const Use& use_;
  int fd_;
  unsigned before_ = socket::thread_signals.seen;
};

/// Each connection on the wire that the process has is pumped from here on; of those that cannot be, `bypass why`
/// tells.
void pump_numbers();
/// Before an exec: the same for those that the image is meant to use, as standard input, output or error, where others
/// of the family keep the ports. A server may leave all of its connections open for what it executes, which knows
/// nothing of them.
void pump_inherited_numbers();
/// Before a number is passed to another process (SCM_RIGHTS): the same for that one.
void pump_passed_number(int fd);

/// getsockname() and getpeername() of a number of the kernel's.
using NameCall = int (*)(int, sockaddr*, socklen_t*);
int name_in_kernel(int fd, sockaddr* address, socklen_t* length, NameCall call);
/// Whether a name of that length, which a receive has told, is that of the pump's end beneath a number of the kernel's.
bool has_pump_beneath(int fd);
inline bool is_pump_name(int fd, socklen_t length) {
  return length == socket::kPumpNameLength && has_pump_beneath(fd);
}
/// The name of a Unix socket that stands for a TCP one, as the program's end of a pair; nullopt: `fd` names none. Keeps
/// errno.
std::optional<socket::PumpName> stand_in_name(int fd);
/// A connection that connect() has begun without waiting: the first connect() after it stands returns 0, later ones
/// EISCONN (inet_stream_connect). take_unreported() says whether this is the first.
void mark_unreported(const socket::PumpName& attempt);
bool take_unreported(const socket::PumpName& attempt);
/// getsockopt() and setsockopt().
int get_kernel_option(int fd, int level, int name, void* value, socklen_t* length);
int set_kernel_option(int fd, int level, int name, const void* value, socklen_t length);
/// ioctl().
int control_in_kernel(int fd, unsigned long request, void* argument);

}  // namespace bypass::preload
