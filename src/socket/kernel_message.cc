#include "socket/kernel_message.h"

#include "socket/errno_map.h"

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

}  // namespace bypass::socket
