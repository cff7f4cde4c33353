// The program's memory as its calls name it: it may not be there, and then the call is EFAULT, as in the kernel.
//
// What touches it is a few instructions that stand in a section of their own, and copies by libc inside run_copy(). A
// fault there comes to the library's handler of SIGSEGV and SIGBUS (runtime/crash/crash.h), which lets the copy fail
// instead: resume_copy(). A copy of the usual length costs what libc's would.
//
// Small things that a call reads by hand (a header, a set) are looked at first: is_readable(), is_writable(). Only a
// program that unmaps them while the call runs could make those wrong.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "os/message.h"

namespace bypass::socket {

/// epoll_wait()'s array is looked at in steps of so many events, when there are events for them.
inline constexpr std::size_t kEventsLookedAt = 64;
/// Longer copies are libc's: their vector registers pay then.
inline constexpr std::size_t kShortCopy = 256;

/// False: some of it is not there, and an unknown part has been copied. For at most kShortCopy bytes.
[[nodiscard]] bool copy_short(void* to, const void* from, std::size_t bytes);
[[nodiscard]] bool copy_long(void* to, const void* from, std::size_t bytes);
/// The same for any number of bytes; `to` or `from` is the program's.
[[nodiscard, gnu::always_inline]] inline bool copy_program_bytes(void* to, const void* from, std::size_t bytes) {
  return bytes <= kShortCopy ? copy_short(to, from, bytes) : copy_long(to, from, bytes);
}
template <typename T>
[[nodiscard]] bool copy_from_program(T& to, const T* from) {
  return copy_program_bytes(&to, from, sizeof to);
}
template <typename T>
[[nodiscard]] bool copy_to_program(T* to, const T& from) {
  return copy_program_bytes(to, &from, sizeof from);
}

/// The kernel's own check of a pointer (access_ok()), which comes before anything else.
[[nodiscard]] inline bool may_be_programs(const void* memory, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  return static_cast<std::intptr_t>(at | (at + bytes)) >= 0;
}
[[nodiscard]] bool is_readable(const void* memory, std::size_t bytes);
/// Of what the call is to fill: another thread has nothing to write there meanwhile.
[[nodiscard]] bool is_writable(void* memory, std::size_t bytes);
/// Of `count` things of `size` bytes each, how many at the front are.
[[nodiscard]] std::size_t writable_front(void* memory, std::size_t count, std::size_t size);

/// The checks that the kernel makes of every vector (import_iovec()): 0 or a negative errno.
[[nodiscard]] long check_vector(const iovec* data, std::size_t count);
/// And of a header that it takes in (copy_msghdr_from_user()).
[[nodiscard]] long check_header(const msghdr* header);
/// The same with what is sent along: the name, control messages.
[[nodiscard]] long check_header_to_send(const msghdr* header);
/// What recvmsg(2) writes to the header: a name's length only where a name was asked for, and the call's own
/// MSG_CMSG_CLOEXEC. False: it cannot be written to.
[[nodiscard]] bool report(const Message& message, msghdr& header, int flags);

/// A name of `length` bytes into the program's room, as calls tell it (move_addr_to_user()): 0 or a negative errno.
long tell_name(const sockaddr_storage& name, socklen_t length, sockaddr* to, socklen_t* room);
/// One that the program gives (move_addr_to_kernel()). Likewise.
long take_name(sockaddr_storage& name, const sockaddr* from, socklen_t length);

/// Where this thread's copy goes on when the memory is not there; null: it makes none. A handler of the program's that
/// interrupts a copy finds null, and the copy its place again after it.
extern constinit thread_local void** copy_resumes_at;  // constinit: no call to see whether it is made
/// In a handler of SIGSEGV or SIGBUS: whether the fault is one of these; what runs in `context` then goes on there.
bool resume_copy(void* context);

}  // namespace bypass::socket
