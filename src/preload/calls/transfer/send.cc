// write, send*, and their vector and batch forms. What a call on a descriptor of the kernel costs: receive.cc.
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "preload/calls/transfer/transfer.h"
#include "preload/calls/transfer/vectors.h"
#include "preload/numbers.h"
#include "preload/passing.h"
#include "preload/pumped.h"
#include "preload/restart.h"
#include "preload/symbols.h"

namespace bypass::preload {

void raise_sigpipe() {
  os::call(SYS_tgkill, os::call(SYS_getpid), os::call(SYS_gettid), SIGPIPE);
}

ssize_t refused(long problem) {
  errno = static_cast<int>(-problem);
  return -1;
}

namespace {

// A failure behind some bytes is told by the next call, without a signal.
ssize_t send_rest(int fd, const msghdr& message, size_t done, int flags) {
  const KeepErrno keep;
  return transfer_rest(message, done,
                       [&](std::byte* from, size_t bytes) { return real.send(fd, from, bytes, flags | MSG_NOSIGNAL); });
}

// The last of `done` messages may have gone in part.
long send_batch_rest(int fd, mmsghdr* messages, unsigned count, unsigned done, int flags) {
  const KeepErrno keep;
  mmsghdr& last = messages[done - 1];
  if (is_part(last.msg_len, last.msg_hdr)) {
    last.msg_len = static_cast<unsigned>(send_rest(fd, last.msg_hdr, last.msg_len, flags));
    if (is_part(last.msg_len, last.msg_hdr)) return done;
  }
  if (done == count) return done;
  const int more = real.sendmmsg(fd, messages + done, count - done, flags | MSG_NOSIGNAL);
  return static_cast<long>(done) + std::max(more, 0);
}

[[gnu::noinline]] ssize_t send_slowly(const Use& use, int fd, const msghdr& message, int flags) {
  const socket::Message m = socket::message_of(message);
  Restart restart(use, fd, SO_SNDTIMEO);
  const Onward onward(use, fd);
  bool sigpipe = false;
  long result;
  do result = socket::send(*use, fd, m, flags, sigpipe);
  while (restart.again(result));
  if (has_moved_to_kernel(use, fd, result)) return real.sendmsg(fd, &message, flags);
  if (onward.goes_on(flags) && is_part(result, message))
    return send_rest(fd, message, static_cast<size_t>(result), flags);
  if (sigpipe) raise_sigpipe();
  drop_if_decided(use, fd);
  return use.finish(result);
}

ssize_t send_vector(const Use& use, int fd, const iovec* data, int count, int flags) {
  pthread_testcancel();
  if (const auto bytes = socket::send_at_once(*use, {data, static_cast<size_t>(count)}, flags))
    return use.finish(*bytes);
  return send_slowly(use, fd, header_of(data, count), flags);
}

// writev(2) of 0 bytes does not reach the socket; write(2) of 0 bytes does (vfs_writev).
ssize_t write_vector(const Use& use, int fd, const iovec* data, int count, int flags) {
  return is_of_nothing(data, count) ? 0 : send_vector(use, fd, data, count, flags);
}

}  // namespace

ssize_t send_message(const Use& use, int fd, const msghdr& message, int flags) {
  if (const long problem = socket::check_header_to_send(&message); problem != 0) return refused(problem);
  pthread_testcancel();
  if (message.msg_controllen == 0) {
    if (const auto bytes = socket::send_at_once(*use, {message.msg_iov, message.msg_iovlen}, flags))
      return use.finish(*bytes);
  }
  return send_slowly(use, fd, message, flags);
}

namespace {

[[gnu::noinline]] ssize_t write_tracked(int fd, const void* buffer, size_t length) {
  Use use(fd);
  if (!use) return real.write(fd, buffer, length);
  iovec data = buffer_of(buffer, length);
  return buffer_is_valid(data) ? send_vector(use, fd, &data, 1, 0) : -1;
}

BYPASS_EXPORT(ssize_t, write, (int fd, const void* buffer, size_t length)) {
  if (!is_tracked(fd)) [[likely]]
    return real.write(fd, buffer, length);
  return write_tracked(fd, buffer, length);
}
BYPASS_ALIAS(__write, write);

[[gnu::noinline]] ssize_t writev_tracked(int fd, const iovec* data, int count) {
  Use use(fd);
  if (!use) return real.writev(fd, data, count);
  return vector_is_valid(data, count) ? write_vector(use, fd, data, count, 0) : -1;
}

BYPASS_EXPORT(ssize_t, writev, (int fd, const iovec* data, int count)) {
  if (!is_tracked(fd)) [[likely]]
    return real.writev(fd, data, count);
  return writev_tracked(fd, data, count);
}

ssize_t positioned_write(int fd, const iovec* data, int count, off_t offset, int flags) {
  if (!is_tracked(fd)) [[likely]]
    return real.pwritev2(fd, data, count, offset, flags);
  Use use(fd);
  int socket_flags = 0;
  if (!use) return real.pwritev2(fd, data, count, offset, flags);
  if (!vector_is_valid(data, count) || !vector_flags(offset, flags, socket_flags)) return -1;
  return write_vector(use, fd, data, count, socket_flags);
}

BYPASS_EXPORT(ssize_t, pwritev2, (int fd, const iovec* data, int count, off_t offset, int flags)) {
  return positioned_write(fd, data, count, offset, flags);
}

BYPASS_EXPORT(ssize_t, pwritev64v2, (int fd, const iovec* data, int count, off_t offset, int flags)) {
  return positioned_write(fd, data, count, offset, flags);
}

[[gnu::noinline]] ssize_t send_tracked(int fd, const void* buffer, size_t length, int flags) {
  Use use(fd);
  if (!use) return real.send(fd, buffer, length, flags);
  iovec data = buffer_of(buffer, length);
  return buffer_is_valid(data) ? send_vector(use, fd, &data, 1, flags) : -1;
}

BYPASS_EXPORT(ssize_t, send, (int fd, const void* buffer, size_t length, int flags)) {
  if (!is_tracked(fd)) [[likely]]
    return real.send(fd, buffer, length, flags);
  return send_tracked(fd, buffer, length, flags);
}
BYPASS_ALIAS(__send, send);

[[gnu::noinline]] ssize_t sendto_tracked(int fd, const void* buffer, size_t length, int flags, const sockaddr* name,
                                         socklen_t name_length) {
  Use use(fd);
  if (!use) return real.sendto(fd, buffer, length, flags, name, name_length);
  if (name != nullptr && name_length > sizeof(sockaddr_storage)) return refused(-EINVAL);
  iovec data = buffer_of(buffer, length);
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(name);
  message.msg_namelen = name != nullptr ? name_length : 0;
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  return send_message(use, fd, message, flags);
}

BYPASS_EXPORT(ssize_t, sendto,
              (int fd, const void* buffer, size_t length, int flags, const sockaddr* name, socklen_t name_length)) {
  if (!is_tracked(fd)) [[likely]]
    return real.sendto(fd, buffer, length, flags, name, name_length);
  return sendto_tracked(fd, buffer, length, flags, name, name_length);
}

BYPASS_EXPORT(ssize_t, sendmsg, (int fd, const msghdr* message, int flags)) {
  if (!is_tracked(fd)) [[likely]]
    return send_passing(fd, message, flags);
  Use use(fd);
  if (!use) return real.sendmsg(fd, message, flags);
  return send_message(use, fd, *message, flags);
}

int send_batch(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (!is_tracked(fd)) [[likely]]
    return send_many_passing(fd, messages, count, flags);
  Use use(fd);
  if (!use) return real.sendmmsg(fd, messages, count, flags);
  pthread_testcancel();
  Restart restart(use, fd, SO_SNDTIMEO);
  const Onward onward(use, fd);
  bool sigpipe = false;
  long result;
  do result = socket::send_many(*use, fd, messages, count, flags, sigpipe);
  while (restart.again(result));
  if (has_moved_to_kernel(use, fd, result)) return real.sendmmsg(fd, messages, count, flags);
  if (result > 0 && onward.goes_on(flags))
    result = send_batch_rest(fd, messages, count, static_cast<unsigned>(result), flags);
  if (sigpipe) raise_sigpipe();
  return static_cast<int>(use.finish(result));
}

BYPASS_EXPORT(int, sendmmsg, (int fd, mmsghdr* messages, unsigned count, int flags)) {
  return send_batch(fd, messages, count, flags);
}

BYPASS_EXPORT(int, __sendmmsg, (int fd, mmsghdr* messages, unsigned count, int flags)) {
  return send_batch(fd, messages, count, flags);
}

}  // namespace
}  // namespace bypass::preload
