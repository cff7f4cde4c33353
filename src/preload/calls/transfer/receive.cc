// read, recv*, and their vector, batch and fortified forms.
//
// A call on a descriptor of the kernel costs only the look-up in the table and a jump; one that tells a name, its
// length, too. Everything else, with its stack frame, is in a function of its own.
#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>

#include "os/own/cancellation.h"
#include "os/program_memory.h"
#include "preload/calls/transfer/transfer.h"
#include "preload/calls/transfer/vectors.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/passing.h"
#include "preload/pumped.h"
#include "preload/restart.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

// MSG_WAITALL, of which a part has come before the move. A look has taken nothing.
ssize_t receive_rest(int fd, msghdr& message, size_t done, int flags) {
  if ((flags & MSG_PEEK) != 0) return real.recvmsg(fd, &message, flags);
  const KeepErrno keep;
  return transfer_rest(message, done, [&](std::byte* to, size_t bytes) { return real.recv(fd, to, bytes, flags); });
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

// For a valid vector, as the functions below.
ssize_t receive_vector(const Use& use, int fd, const iovec* data, int count, int flags) {
  pthread_testcancel();
  const Restart restart(use, fd, SO_RCVTIMEO);
  const auto bytes = socket::receive_at_once(*use, {data, static_cast<size_t>(count)}, flags);
  if (bytes.has_value() && !restart.again(*bytes)) return use.finish(*bytes);
  msghdr message = header_of(data, count);
  return receive_slowly(use, fd, message, flags);
}

// read(2) of 0 bytes does not wait; recv(2) of 0 bytes waits for data (sock_read_iter).
ssize_t read_vector(const Use& use, int fd, const iovec* data, int count, int flags) {
  return is_of_nothing(data, count) ? 0 : receive_vector(use, fd, data, count, flags);
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
BYPASS_ALIAS(__read, read);

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

// A number that is the kernel's.
ssize_t receive_in_kernel(int fd, msghdr* message, int flags) {
  const ssize_t result = nameless(fd, message, real.recvmsg(fd, message, flags));
  if (result >= 0) take_passed(*message);
  return result;
}

BYPASS_EXPORT(ssize_t, recvmsg, (int fd, msghdr* message, int flags)) {
  if (!is_tracked(fd)) [[likely]]
    return receive_in_kernel(fd, message, flags);
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

int receive_many_in_kernel(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  const int result = nameless(fd, messages, real.recvmmsg(fd, messages, count, flags, timeout));
  for (int i = 0; i < result; i++) take_passed(messages[i].msg_hdr);
  return result;
}

BYPASS_EXPORT(int, recvmmsg, (int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout)) {
  if (!is_tracked(fd)) [[likely]]
    return receive_many_in_kernel(fd, messages, count, flags, timeout);
  return recvmmsg_tracked(fd, messages, count, flags, timeout);
}

}  // namespace
}  // namespace bypass::preload
