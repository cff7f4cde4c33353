// What the calls that receive and those that send have in common: checks of what the program gives, and what is left of
// a call whose connection has moved (preload/pumped.h).
#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "os/io_cursor.h"
#include "os/program_memory.h"
#include "preload/calls/transfer/transfer.h"
#include "preload/uses.h"

namespace bypass::preload {

/// Checks a vector as the kernel does; otherwise sets errno.
inline bool vector_is_valid(const iovec* data, int count) {
  const long problem = socket::check_vector(data, count < 0 ? ~std::size_t{0} : static_cast<std::size_t>(count));
  return problem == 0 || refused(problem) == 0;
}

/// Checks one buffer as the kernel's access_ok() does.
inline bool buffer_is_valid(const iovec& data) {
  if (socket::may_be_programs(data.iov_base, data.iov_len)) [[likely]]
    return true;
  errno = EFAULT;
  return false;
}

/// preadv2 and pwritev2 at offset -1 are readv and writev with flags; a socket cannot seek to another offset. Flags
/// that concern files have no effect on a socket (kiocb_set_rw_flags).
inline bool vector_flags(off_t offset, int flags, int& socket_flags) {
  constexpr int kAll = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND;
  socket_flags = (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0;
  if (offset == -1 && (flags & ~kAll) == 0) return true;
  errno = offset == -1 ? EOPNOTSUPP : offset < 0 ? EINVAL : ESPIPE;
  return false;
}

inline bool is_of_nothing(const iovec* data, int count) {
  return std::all_of(data, data + count, [](const iovec& v) { return v.iov_len == 0; });
}

inline msghdr header_of(const iovec* data, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(data);
  message.msg_iovlen = static_cast<size_t>(count);
  return message;
}

/// `done` bytes of the message have been transferred, the rest by `call`; how many all in all.
template <typename Call>
ssize_t transfer_rest(const msghdr& message, size_t done, Call call) {
  size_t skipped = done, all = done;
  for (const iovec& part : std::span(message.msg_iov, message.msg_iovlen)) {
    const size_t skip = std::min(skipped, part.iov_len), left = part.iov_len - skip;
    skipped -= skip;
    if (left == 0) continue;
    const ssize_t r = call(static_cast<std::byte*>(part.iov_base) + skip, left);
    if (r > 0) all += static_cast<size_t>(r);
    if (r < 0 || static_cast<size_t>(r) < left) break;
  }
  return static_cast<ssize_t>(all);
}

inline bool is_part(long result, const msghdr& message) {
  return result > 0 && static_cast<size_t>(result) < socket::total_bytes({message.msg_iov, message.msg_iovlen});
}

}  // namespace bypass::preload
