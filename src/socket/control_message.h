// Control messages: the kernel's put_cmsg for what a receive reports beside the bytes, and what a send is told.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <span>

#include "socket/api.h"
#include "socket/socket.h"
#include "stack/udp.h"

namespace bypass::socket {

/// Appends messages to a receive's control buffer; what does not fit is cut and MSG_CTRUNC set.
class ControlWriter {
 public:
  explicit ControlWriter(Message& message) : message_(message), room_(message.control_length) {
    message.control_length = 0;
  }
  void put(int level, int type, const void* data, std::size_t size);

 private:
  Message& message_;
  std::size_t room_;
};

/// What the socket asked to be told of a datagram: time stamps, destination, TOS, TTL.
void report_datagram(const Socket& socket, const udp::Datagram& datagram, Instant now, Message& message);

/// What a send's control messages ask for.
struct SendControl {
  IpAddress source;  // IP_PKTINFO; any: the route's
  std::optional<std::uint8_t> tos, ttl;
  std::optional<std::uint16_t> segment_bytes;  // UDP_SEGMENT
};
SendControl read_control(const Message& message);

}  // namespace bypass::socket
