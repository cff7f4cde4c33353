// sendfile and splice.
#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "os/own/cancellation.h"
#include "os/program_memory.h"
#include "preload/calls/transfer/transfer.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/restart.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

// A connection that is the kernel's beneath goes back to the kernel, and then splices. Returns 0: it may splice.
// EAGAIN: earlier bytes are still on their way to the kernel, and the call may not wait. EINVAL: the connection stays
// ours. A listener has no bytes, and the kernel's own socket under the number answers as for any listener.
int why_not_spliced(int fd, socket::Transfer transfer, bool waits) {
  if (!is_tracked(fd)) return 0;
  Use use(fd);
  if (!use || socket::kind(*use) == socket::FileKind::kListener) return 0;
  for (;;) {
    socket::leave_shared_memory(*use, waits ? socket::Wait::kForRoom : socket::Wait::kNot);
    if (socket::is_in_kernel(*use) || socket::has_splice(*use)) break;
    const int problem = socket::why_not_kernel(*use, transfer);
    if (problem != EAGAIN) return problem == 0 ? 0 : EINVAL;
    if (transfer == socket::Transfer::kRead) return EINVAL;  // only this process can read the bytes
    if (!waits) return EAGAIN;
  }
  return socket::is_in_kernel(*use) ? 0 : EINVAL;
}

bool may_wait(int fd, unsigned splice_flags) {
  return (splice_flags & SPLICE_F_NONBLOCK) == 0 && (real.fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
}

bool is_pipe(int fd) {
  const KeepErrno keep;
  return real.fcntl(fd, F_GETPIPE_SZ) >= 0;
}

// The kernel's sendfile() from a socket is splice() where the target is a pipe, and an error everywhere else
// (do_sendfile).
ssize_t send_from_socket(int out, int in, off_t* offset, size_t count) {
  const socket::CancellationOff off;
  if (offset != nullptr || !is_pipe(out)) return real.sendfile(out, in, offset, count);
  return ::splice(in, nullptr, out, nullptr, count, 0);
}

ssize_t send_file(int out, int in, off_t* offset, size_t count) {
  if (why_not_spliced(in, socket::Transfer::kRead, true) != 0) return send_from_socket(out, in, offset, count);
  if (!is_tracked(out)) [[likely]]
    return real.sendfile(out, in, offset, count);
  Use use(out);
  if (!use) return real.sendfile(out, in, offset, count);
  off_t at = 0;
  if (offset != nullptr && !socket::copy_from_program(at, offset)) return refused(-EFAULT);
  const socket::CancellationOff off;  // libc's function is no cancellation point
  Restart restart(use, out, SO_SNDTIMEO);
  const Onward onward(use, out);
  bool sigpipe = false;
  long result;
  do result = socket::send_file(*use, out, in, offset != nullptr ? &at : nullptr, count, sigpipe);
  while (restart.again(result));
  off_t* const from = offset != nullptr ? &at : nullptr;
  if (has_moved_to_kernel(use, out, result)) {
    const ssize_t r = real.sendfile(out, in, from, count);
    result = r < 0 ? -errno : r;
  } else if (result > 0 && static_cast<size_t>(result) < count && onward.goes_on(0)) {
    result += std::max<ssize_t>(real.sendfile(out, in, from, count - static_cast<size_t>(result)), 0);
  }
  if (sigpipe) raise_sigpipe();
  if (offset != nullptr && !socket::copy_to_program(offset, at)) result = -EFAULT;
  return use.finish(result);
}

BYPASS_EXPORT(ssize_t, sendfile, (int out, int in, off_t* offset, size_t count)) {
  return send_file(out, in, offset, count);
}

BYPASS_EXPORT(ssize_t, sendfile64, (int out, int in, off_t* offset, size_t count)) {
  return send_file(out, in, offset, count);
}

// Programs can do without splice() if it returns EINVAL from the first call on, but not later: haproxy then has bytes
// in the pipe that it cannot give back, and systemd-socket-proxyd has no other way. Nullopt: it is no connection on a
// wire.
template <typename Splice>
std::optional<ssize_t> splice_ours(int fd, const off_t* offset, int pipe, const off_t* pipe_offset, int timeout,
                                   Splice splice) {
  Use use(fd);
  if (!use || !socket::has_splice(*use)) return std::nullopt;
  if (pipe_offset != nullptr || offset != nullptr) {
    errno = pipe_offset != nullptr && real.fcntl(pipe, F_GETPIPE_SZ) >= 0 ? ESPIPE : EINVAL;
    return -1;
  }
  pthread_testcancel();
  Restart restart(use, fd, timeout);
  bool sigpipe = false;
  long result;
  do result = splice(*use, sigpipe);
  while (restart.again(result));
  if (has_moved_to_kernel(use, fd, result)) return std::nullopt;
  if (sigpipe) raise_sigpipe();
  return use.finish(result);
}

BYPASS_EXPORT(ssize_t, splice, (int in, off_t* in_offset, int out, off_t* out_offset, size_t length, unsigned flags)) {
  const bool from_ours = why_not_spliced(in, socket::Transfer::kRead, true) != 0;
  const int into = why_not_spliced(out, socket::Transfer::kWrite, may_wait(out, flags));
  const bool into_ours = into != 0;
  if (!from_ours && !into_ours) [[likely]]
    return real.splice(in, in_offset, out, out_offset, length, flags);
  if (into == EAGAIN) return errno = EAGAIN, -1;
  std::optional<ssize_t> r;
  if (!from_ours)
    r = splice_ours(out, out_offset, in, in_offset, SO_SNDTIMEO, [&](File& file, bool& sigpipe) {
      return socket::splice_from_pipe(file, in, length, flags, sigpipe);
    });
  else if (!into_ours)
    r = splice_ours(in, in_offset, out, out_offset, SO_RCVTIMEO, [&](File& file, bool& sigpipe) {
      return socket::splice_to_pipe(file, out, length, flags, sigpipe);
    });
  else
    r = (errno = EINVAL, -1);  // neither end is a pipe
  if (r.has_value()) return *r;
  if (!is_tracked(from_ours ? in : out)) return real.splice(in, in_offset, out, out_offset, length, flags);  // moved
  note_escape(from_ours ? in : out, observe::Reason::kNotBuilt, "splice answered with EINVAL");
  errno = EINVAL;
  return -1;
}

}  // namespace
}  // namespace bypass::preload
