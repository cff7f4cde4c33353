// The program's memory as its calls name it. If it is not mapped, the call returns EFAULT, as in the kernel.
//
// Only a few instructions touch it: those in a section of their own, and copies by libc inside run_copy(). A fault
// there reaches the library's handler of SIGSEGV and SIGBUS (runtime/crash/crash.h), which makes the copy fail:
// resume_copy(). A copy of the usual length costs as much as libc's.
//
// Small things that a call reads by hand (a header, a set) are checked first: is_readable(), is_writable(). Only a
// program that unmaps them during the call could make these checks wrong.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "os/message.h"

namespace bypass::socket {

/// epoll_wait()'s array is checked in steps of so many events, if there are events for them.
inline constexpr std::size_t kEventsLookedAt = 64;
/// Longer copies are left to libc, whose vector registers are faster then.
inline constexpr std::size_t kShortCopy = 256;

/// False: a part is not mapped, and an unknown part was copied. For at most kShortCopy bytes.
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

/// The kernel's own check of a pointer (access_ok()), which it makes before anything else.
[[nodiscard]] inline bool may_be_programs(const void* memory, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  return static_cast<std::intptr_t>(at | (at + bytes)) >= 0;
}
[[nodiscard]] bool is_readable(const void* memory, std::size_t bytes);
/// For memory that the call will fill: no other thread may write there meanwhile.
[[nodiscard]] bool is_writable(void* memory, std::size_t bytes);
/// How many of `count` things of `size` bytes each are writable, from the first on.
[[nodiscard]] std::size_t writable_front(void* memory, std::size_t count, std::size_t size);

/// The kernel's checks of every vector (import_iovec()): 0 or a negative errno.
[[nodiscard]] long check_vector(const iovec* data, std::size_t count);
/// The kernel's checks of a header that it reads (copy_msghdr_from_user()).
[[nodiscard]] long check_header(const msghdr* header);
/// The same, and also checks what is sent with it: the name and control messages.
[[nodiscard]] long check_header_to_send(const msghdr* header);
/// Writes what recvmsg(2) writes to the header: a name's length only if a name was asked for, and the call's own
/// MSG_CMSG_CLOEXEC. False: the header is not writable.
[[nodiscard]] bool report(const Message& message, msghdr& header, int flags);

/// Writes a name of `length` bytes into the program's memory (move_addr_to_user()): 0 or a negative errno.
long copy_name_out(const sockaddr_storage& name, socklen_t length, sockaddr* to, socklen_t* room);
/// Reads a name that the program passes (move_addr_to_kernel()): 0 or a negative errno.
long take_name(sockaddr_storage& name, const sockaddr* from, socklen_t length);

/// Where this thread's copy continues if the memory is not mapped; null: the thread makes no copy. A program's handler
/// that interrupts a copy finds null; after the handler the value is restored.
extern constinit thread_local void** copy_resumes_at;  // constinit: no call to see whether it is made
/// In a handler of SIGSEGV or SIGBUS: returns whether the fault belongs to such a copy. If so, `context` continues at
/// copy_resumes_at.
bool resume_copy(void* context);

}  // namespace bypass::socket
