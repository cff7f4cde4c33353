// Message: what one call transfers, in the terms of recvmsg(2).
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace bypass::socket {

/// One recvmsg() or sendmsg(): every transfer call becomes one of these. `name` and `control` may be null.
struct Message {
  std::span<const iovec> data;
  sockaddr* name = nullptr;
  socklen_t name_length = 0;  // in: room; out (receive): length
  void* control = nullptr;
  std::size_t control_length = 0;
  int flags = 0;  // out (receive): MSG_TRUNC, MSG_CTRUNC …
};
/// Makes a Message from a header as recvmsg(2) and sendmsg(2) take it. As in the kernel, the length of a null field is
/// ignored.
inline Message message_of(const msghdr& header) {
  return {.data = {header.msg_iov, header.msg_iovlen},
          .name = static_cast<sockaddr*>(header.msg_name),
          .name_length = header.msg_name == nullptr ? 0 : header.msg_namelen,
          .control = header.msg_control,
          .control_length = header.msg_control == nullptr ? 0 : header.msg_controllen};
}

}  // namespace bypass::socket
