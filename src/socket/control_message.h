// Control messages: the kernel's put_cmsg() for what a receive reports beside the bytes, and the control messages of a
// send.
// Tests: tests/socket/datagram_test.cc, tests/socket/report_test.cc.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <span>

#include "socket/api.h"
#include "socket/socket.h"
#include "stack/udp/udp.h"

namespace bypass::socket {

/// Appends messages to a receive's control buffer. If a message does not fit, it is cut and MSG_CTRUNC is set.
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

/// Reports what the socket asked to know about a datagram: time stamps, destination, TOS, TTL.
void report_datagram(const Socket& socket, const udp::Datagram& datagram, Instant now, Message& message);

/// recvmsg(MSG_ERRQUEUE): reports which datagram it was and what happened (ip(7), IP_RECVERR).
void report_error(const Socket& socket, const udp::QueuedError& error, Instant now, Message& message);
/// The same for the sends `first` to `last` of MSG_ZEROCOPY, whose bytes were copied.
void report_copied(const Socket& socket, std::uint32_t first, std::uint32_t last, Instant now, Message& message);
/// The same for a stream's bytes. `arrived`: when the last one came; `left`: how many more there are (TCP_INQ).
void report_stream(const Socket& socket, Instant arrived, Instant now, std::size_t left, Message& message);
[[nodiscard]] inline bool reports_stream(const Socket& socket) {
  return socket.has(kWantTimestamp | kWantTimestampNs | kWantTimestamping | kWantInq);
}

/// What a send's control messages ask for.
struct SendControl {
  IpAddress source;  // IP_PKTINFO; unset: the route's
  std::optional<std::uint8_t> tos, ttl;
  std::optional<std::uint16_t> segment_bytes;  // UDP_SEGMENT
  long refusal = 0;                            // a failure if the kernel would refuse one of the messages
};
SendControl read_control(const Message& message);
/// The kernel's answer to a stream's control messages: a failure, or 0.
[[nodiscard]] long stream_control_refusal(const Message& message);

}  // namespace bypass::socket
