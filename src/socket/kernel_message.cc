#include "socket/kernel_message.h"

#include <limits.h>

#include "os/errno_map.h"

namespace bypass::socket {

namespace {

msghdr header_of(const Message& message) {
  msghdr header{};
  header.msg_name = message.name;
  header.msg_namelen = message.name == nullptr ? 0 : message.name_length;
  header.msg_iov = const_cast<iovec*>(message.data.data());
  header.msg_iovlen = message.data.size();
  header.msg_control = message.control;
  header.msg_controllen = message.control == nullptr ? 0 : message.control_length;
  return header;
}

bool is_plain(const Message& message, int flags) {
  const bool bare = message.name == nullptr && message.control == nullptr && flags == 0;
  return bare && !message.data.empty() && message.data.size() <= IOV_MAX && message.data[0].iov_len != 0;
}

}  // namespace

long kernel_receive(int fd, Message& message, int flags) {
  msghdr header = header_of(message);
  const long r = kernel_result(kernel->recvmsg(fd, &header, flags));
  if (r < 0) return r;
  message.name_length = header.msg_namelen;
  message.control_length = header.msg_controllen;
  message.flags = header.msg_flags;
  return r;
}

long kernel_send(int fd, const Message& message, int flags) {
  const msghdr header = header_of(message);
  return kernel_result(kernel->sendmsg(fd, &header, flags));
}

long kernel_read(int fd, Message& message, int flags) {
  if (!is_plain(message, flags)) return kernel_receive(fd, message, flags);
  message.name_length = 0;
  message.control_length = 0;
  message.flags = 0;
  const std::span<const iovec> data = message.data;
  if (data.size() == 1) return kernel_result(kernel->read(fd, data[0].iov_base, data[0].iov_len));
  return kernel_result(kernel->readv(fd, data.data(), static_cast<int>(data.size())));
}

long kernel_write(int fd, const Message& message, int flags) {
  if (!is_plain(message, flags)) return kernel_send(fd, message, flags);
  const std::span<const iovec> data = message.data;
  if (data.size() == 1) return kernel_result(kernel->write(fd, data[0].iov_base, data[0].iov_len));
  return kernel_result(kernel->writev(fd, data.data(), static_cast<int>(data.size())));
}

}  // namespace bypass::socket
