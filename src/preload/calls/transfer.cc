// read, write, recv*, send*, and their vector, batch and fortified forms.
#include "preload/calls/transfer.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "os/program_memory.h"
#include "preload/escape.h"
#include "preload/numbers.h"
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

// --- What is left of a call whose connection has moved (pumped.h)

// `done` bytes of the message have been transferred, the rest by `call`; how many all in all.
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

// A failure behind some bytes is told by the next call, without a signal.
ssize_t send_rest(int fd, const msghdr& message, size_t done, int flags) {
  const KeepErrno keep;
  return transfer_rest(message, done,
                       [&](std::byte* from, size_t bytes) { return real.send(fd, from, bytes, flags | MSG_NOSIGNAL); });
}

// MSG_WAITALL, of which a part has come before the move. A look has taken nothing.
ssize_t receive_rest(int fd, msghdr& message, size_t done, int flags) {
  if ((flags & MSG_PEEK) != 0) return real.recvmsg(fd, &message, flags);
  const KeepErrno keep;
  return transfer_rest(message, done, [&](std::byte* to, size_t bytes) { return real.recv(fd, to, bytes, flags); });
}

bool is_part(long result, const msghdr& message) {
  return result > 0 && static_cast<size_t>(result) < socket::total_bytes({message.msg_iov, message.msg_iovlen});
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

// For a message with a valid header.
[[gnu::noinline]] ssize_t receive_slowly(const Use& use, int fd, msghdr& message, int flags) {
  Restart restart(use, fd, SO_RCVTIMEO);
  const Onward onward(use, fd);
  long result;
  do result = socket::receive_header(*use, fd, message, flags);
  while (restart.again(result));
  if (has_moved_to_kernel(use, fd, result)) return real.recvmsg(fd, &message, flags);
  if ((flags & MSG_WAITALL) != 0 && onward.goes_on(flags) && is_part(result, message))
    return receive_rest(fd, message, static_cast<size_t>(result), flags);
  drop_if_decided(use, fd);
  return use.finish(result);
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

msghdr header_of(const iovec* data, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(data);
  message.msg_iovlen = static_cast<size_t>(count);
  return message;
}

// For a valid vector, as the functions below.
ssize_t receive_vector(const Use& use, int fd, const iovec* data, int count, int flags) {
  pthread_testcancel();
  const Restart restart(use, fd, SO_RCVTIMEO);
  const auto bytes = socket::receive_at_once(*use, {data, static_cast<size_t>(count)}, flags);
  if (bytes.has_value() && !restart.again(*bytes)) return use.finish(*bytes);
  msghdr message = header_of(data, count);
  return receive_slowly(use, fd, message, flags);
}

bool is_of_nothing(const iovec* data, int count) {
  return std::all_of(data, data + count, [](const iovec& v) { return v.iov_len == 0; });
}

// read(2) of 0 bytes does not wait; recv(2) of 0 bytes waits for data (sock_read_iter).
ssize_t read_vector(const Use& use, int fd, const iovec* data, int count, int flags) {
  return is_of_nothing(data, count) ? 0 : receive_vector(use, fd, data, count, flags);
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

// Checks a vector as the kernel does; otherwise sets errno.
bool vector_is_valid(const iovec* data, int count) {
  const long problem = socket::check_vector(data, count < 0 ? ~std::size_t{0} : static_cast<std::size_t>(count));
  return problem == 0 || refused(problem) == 0;
}

// Checks one buffer as the kernel's access_ok() does.
bool buffer_is_valid(const iovec& data) {
  if (socket::may_be_programs(data.iov_base, data.iov_len)) [[likely]]
    return true;
  errno = EFAULT;
  return false;
}

// preadv2 and pwritev2 at offset -1 are readv and writev with flags; a socket cannot seek to another offset.
bool vector_flags(off_t offset, int flags, int& socket_flags) {
  socket_flags = (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0;
  if (offset != -1) errno = ESPIPE;
  if (offset == -1 && (flags & ~(RWF_NOWAIT | RWF_HIPRI)) != 0) errno = EOPNOTSUPP;
  return offset == -1 && (flags & ~(RWF_NOWAIT | RWF_HIPRI)) == 0;
}

// The name is written last (move_addr_to_user()). If that fails, the received bytes are lost.
ssize_t receive_from(const Use& use, int fd, const iovec& data, int flags, sockaddr* name, socklen_t* name_length) {
  sockaddr_storage there;
  msghdr message{};
  message.msg_name = name != nullptr ? &there : nullptr;
  message.msg_namelen = sizeof there;
  message.msg_iov = const_cast<iovec*>(&data);
  message.msg_iovlen = 1;
  const ssize_t result = receive_message(use, fd, message, flags);
  if (result < 0 || name == nullptr) return result;
  const long problem = socket::copy_name_out(there, message.msg_namelen, name, name_length);
  return problem == 0 ? result : refused(problem);
}

}  // namespace

ssize_t receive_message(const Use& use, int fd, msghdr& message, int flags) {
  if (const long problem = socket::check_header(&message); problem != 0) return refused(problem);
  pthread_testcancel();
  const Restart restart(use, fd, SO_RCVTIMEO);
  const auto bytes = socket::receive_at_once(*use, {message.msg_iov, message.msg_iovlen}, flags);
  if (bytes.has_value() && !restart.again(*bytes)) {
    const bool told = *bytes < 0 || socket::report({}, message, flags);
    return use.finish(told ? *bytes : -EFAULT);
  }
  return receive_slowly(use, fd, message, flags);
}

ssize_t send_message(const Use& use, int fd, const msghdr& message, int flags) {
  if (const long problem = socket::check_header_to_send(&message); problem != 0) return refused(problem);
  pthread_testcancel();
  if (message.msg_controllen == 0) {
    if (const auto bytes = socket::send_at_once(*use, {message.msg_iov, message.msg_iovlen}, flags))
      return use.finish(*bytes);
  }
  return send_slowly(use, fd, message, flags);
}

// A call on a descriptor of the kernel costs only the look-up in the table and a jump; one that tells a name, its
// length, too. Everything else, with its stack frame, is in a function of its own.
namespace {

// A TCP socket tells no name with what it has received (tcp_recvmsg in net/ipv4/tcp.c), a Unix socket that stands for
// one would.
ssize_t nameless(int fd, const sockaddr* name, socklen_t* length, ssize_t result) {
  if (result >= 0 && name != nullptr && is_pump_name(fd, *length)) [[unlikely]]
    *length = 0;
  return result;
}

ssize_t nameless(int fd, msghdr* message, ssize_t result) {
  if (result >= 0 && message->msg_name != nullptr && is_pump_name(fd, message->msg_namelen)) [[unlikely]]
    message->msg_namelen = 0;
  return result;
}

int nameless(int fd, mmsghdr* messages, int result) {
  for (int i = 0; i < result; i++) (void)nameless(fd, &messages[i].msg_hdr, 0);
  return result;
}

[[gnu::noinline]] ssize_t read_tracked(int fd, void* buffer, size_t length) {
  Use use(fd);
  if (!use) return real.read(fd, buffer, length);
  iovec data = buffer_of(buffer, length);
  return buffer_is_valid(data) ? read_vector(use, fd, &data, 1, 0) : -1;
}

BYPASS_EXPORT(ssize_t, read, (int fd, void* buffer, size_t length)) {
  if (!is_tracked(fd)) [[likely]]
    return real.read(fd, buffer, length);
  return read_tracked(fd, buffer, length);
}

[[gnu::noinline]] ssize_t read_chk_tracked(int fd, void* buffer, size_t length, size_t room) {
  Use use(fd);
  if (!use || length > room) return real.__read_chk(fd, buffer, length, room);
  iovec data = buffer_of(buffer, length);
  return buffer_is_valid(data) ? read_vector(use, fd, &data, 1, 0) : -1;
}

BYPASS_EXPORT(ssize_t, __read_chk, (int fd, void* buffer, size_t length, size_t room)) {
  if (!is_tracked(fd)) [[likely]]
    return real.__read_chk(fd, buffer, length, room);
  return read_chk_tracked(fd, buffer, length, room);
}

[[gnu::noinline]] ssize_t readv_tracked(int fd, const iovec* data, int count) {
  Use use(fd);
  if (!use) return real.readv(fd, data, count);
  return vector_is_valid(data, count) ? read_vector(use, fd, data, count, 0) : -1;
}

BYPASS_EXPORT(ssize_t, readv, (int fd, const iovec* data, int count)) {
  if (!is_tracked(fd)) [[likely]]
    return real.readv(fd, data, count);
  return readv_tracked(fd, data, count);
}

ssize_t positioned_read(int fd, const iovec* data, int count, off_t offset, int flags) {
  if (!is_tracked(fd)) [[likely]]
    return real.preadv2(fd, data, count, offset, flags);
  Use use(fd);
  int socket_flags = 0;
  if (!use) return real.preadv2(fd, data, count, offset, flags);
  if (!vector_is_valid(data, count) || !vector_flags(offset, flags, socket_flags)) return -1;
  return read_vector(use, fd, data, count, socket_flags);
}

BYPASS_EXPORT(ssize_t, preadv2, (int fd, const iovec* data, int count, off_t offset, int flags)) {
  return positioned_read(fd, data, count, offset, flags);
}

BYPASS_EXPORT(ssize_t, preadv64v2, (int fd, const iovec* data, int count, off_t offset, int flags)) {
  return positioned_read(fd, data, count, offset, flags);
}

[[gnu::noinline]] ssize_t recv_tracked(int fd, void* buffer, size_t length, int flags) {
  Use use(fd);
  if (!use) return real.recv(fd, buffer, length, flags);
  iovec data = buffer_of(buffer, length);
  return buffer_is_valid(data) ? receive_vector(use, fd, &data, 1, flags) : -1;
}

BYPASS_EXPORT(ssize_t, recv, (int fd, void* buffer, size_t length, int flags)) {
  if (!is_tracked(fd)) [[likely]]
    return real.recv(fd, buffer, length, flags);
  return recv_tracked(fd, buffer, length, flags);
}

[[gnu::noinline]] ssize_t recv_chk_tracked(int fd, void* buffer, size_t length, size_t room, int flags) {
  Use use(fd);
  if (!use || length > room) return real.__recv_chk(fd, buffer, length, room, flags);
  iovec data = buffer_of(buffer, length);
  return buffer_is_valid(data) ? receive_vector(use, fd, &data, 1, flags) : -1;
}

BYPASS_EXPORT(ssize_t, __recv_chk, (int fd, void* buffer, size_t length, size_t room, int flags)) {
  if (!is_tracked(fd)) [[likely]]
    return real.__recv_chk(fd, buffer, length, room, flags);
  return recv_chk_tracked(fd, buffer, length, room, flags);
}

[[gnu::noinline]] ssize_t recvfrom_tracked(int fd, void* buffer, size_t length, int flags, sockaddr* name,
                                           socklen_t* name_length) {
  Use use(fd);
  if (!use) return nameless(fd, name, name_length, real.recvfrom(fd, buffer, length, flags, name, name_length));
  const iovec data = buffer_of(buffer, length);
  return receive_from(use, fd, data, flags, name, name_length);
}

BYPASS_EXPORT(ssize_t, recvfrom,
              (int fd, void* buffer, size_t length, int flags, sockaddr* name, socklen_t* name_length)) {
  if (!is_tracked(fd)) [[likely]]
    return nameless(fd, name, name_length, real.recvfrom(fd, buffer, length, flags, name, name_length));
  return recvfrom_tracked(fd, buffer, length, flags, name, name_length);
}

[[gnu::noinline]] ssize_t recvfrom_chk_tracked(int fd, void* buffer, size_t length, size_t room, int flags,
                                               sockaddr* name, socklen_t* name_length) {
  Use use(fd);
  if (!use || length > room)
    return nameless(fd, name, name_length, real.__recvfrom_chk(fd, buffer, length, room, flags, name, name_length));
  const iovec data = buffer_of(buffer, length);
  return receive_from(use, fd, data, flags, name, name_length);
}

BYPASS_EXPORT(ssize_t, __recvfrom_chk,
              (int fd, void* buffer, size_t length, size_t room, int flags, sockaddr* name, socklen_t* name_length)) {
  if (!is_tracked(fd)) [[likely]]
    return nameless(fd, name, name_length, real.__recvfrom_chk(fd, buffer, length, room, flags, name, name_length));
  return recvfrom_chk_tracked(fd, buffer, length, room, flags, name, name_length);
}

[[gnu::noinline]] ssize_t recvmsg_tracked(int fd, msghdr* message, int flags) {
  Use use(fd);
  if (!use) return nameless(fd, message, real.recvmsg(fd, message, flags));
  return receive_message(use, fd, *message, flags);  // it reads the header first
}

BYPASS_EXPORT(ssize_t, recvmsg, (int fd, msghdr* message, int flags)) {
  if (!is_tracked(fd)) [[likely]]
    return nameless(fd, message, real.recvmsg(fd, message, flags));
  return recvmsg_tracked(fd, message, flags);
}

[[gnu::noinline]] int recvmmsg_tracked(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  Use use(fd);
  if (!use) return nameless(fd, messages, real.recvmmsg(fd, messages, count, flags, timeout));
  timespec time{};
  if (timeout != nullptr && !socket::copy_from_program(time, timeout)) return static_cast<int>(refused(-EFAULT));
  pthread_testcancel();
  Restart restart(use, fd, SO_RCVTIMEO);
  const Onward onward(use, fd);
  long result;
  do result = socket::receive_many(*use, fd, messages, count, flags, timeout != nullptr ? &time : nullptr);
  while (timeout == nullptr && restart.again(result));
  timespec* const left = timeout != nullptr ? &time : nullptr;
  if (has_moved_to_kernel(use, fd, result)) {
    const int r = real.recvmmsg(fd, messages, count, flags, left);
    result = r < 0 ? -errno : r;
  } else if (result > 0 && result < count && (flags & MSG_WAITFORONE) == 0 && onward.goes_on(flags)) {
    result += std::max(real.recvmmsg(fd, messages + result, count - static_cast<unsigned>(result), flags, left), 0);
  }
  if (timeout != nullptr && result > 0 && !socket::copy_to_program(timeout, time)) result = -EFAULT;
  return static_cast<int>(use.finish(result));
}

BYPASS_EXPORT(int, recvmmsg, (int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout)) {
  if (!is_tracked(fd)) [[likely]]
    return nameless(fd, messages, real.recvmmsg(fd, messages, count, flags, timeout));
  return recvmmsg_tracked(fd, messages, count, flags, timeout);
}

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
  if (!is_tracked(fd)) [[likely]] {
    note_passed_descriptors(message);
    return real.sendmsg(fd, message, flags);
  }
  Use use(fd);
  if (!use) return real.sendmsg(fd, message, flags);
  return send_message(use, fd, *message, flags);
}

int send_batch(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (!is_tracked(fd)) [[likely]]
    return real.sendmmsg(fd, messages, count, flags);
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
