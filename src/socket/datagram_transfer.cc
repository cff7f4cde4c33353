#include <sched.h>

#include <algorithm>
#include <array>

#include "socket/control_message.h"
#include "socket/datagram.h"
#include "socket/io_cursor.h"
#include "socket/kernel_message.h"
#include "socket/socket_wait.h"

namespace bypass::socket {

namespace {

// --- Receiving ---------------------------------------------------------------------------------------------

class ReceivingDatagram final : public DualCondition {
 public:
  ReceivingDatagram(Socket& socket, int fd, Message& message, int flags)
      : DualCondition(socket, kIn), fd_(fd), message_(message), asked_(message), flags_(flags) {}

  long attempt(Guard& guard) override;
  [[nodiscard]] bool needs_wire() const override { return has_binding(socket_); }

 private:
  long take_from_wire(Guard& guard, const udp::Datagram& datagram);
  long take_from_kernel(Guard& guard);

  int fd_;
  Message& message_;
  const Message asked_;  // the room there was: a failed attempt must not use it up
  int flags_;
};

long ReceivingDatagram::attempt(Guard& guard) {
  for (;;) {
    udp::Datagram first;
    const bool wire_has = socket_.binding != nullptr && udp_engine().front(*socket_.binding, first);
    const bool kernel_has = has_kernel_half(socket_) && socket_.details->half.in;
    if (!wire_has && !kernel_has) {
      if (socket_.binding != nullptr) {
        const Error error = udp_engine().take_error(*socket_.binding);
        if (error != Error::kNone) return failure(error);
      }
      return socket_.has(kShutReceive) ? 0 : again();
    }
    const bool from_kernel = kernel_has && (!wire_has || socket_.has(kKernelTurn));
    if ((flags_ & MSG_PEEK) == 0) socket_.set(kKernelTurn, !from_kernel);
    const long r = from_kernel ? take_from_kernel(guard) : take_from_wire(guard, first);
    if (r != kAgain) return r;
  }
}

std::size_t copy_payload(const udp::Datagram& datagram, IoCursor& to, std::size_t bytes) {
  std::size_t skip = datagram.offset, left = bytes;
  for (const Packet* p = datagram.packet; p != nullptr && left != 0; p = p->next_segment) {
    const std::size_t from = std::min<std::size_t>(skip, p->len);
    const std::size_t n = std::min<std::size_t>(p->len - from, left);
    to.write(p->data + from, n);
    skip -= from;
    left -= n;
  }
  return bytes - left;
}

long ReceivingDatagram::take_from_wire(Guard& guard, const udp::Datagram& datagram) {
  IoCursor to(message_.data);
  const std::size_t room = total_bytes(message_.data);
  const std::size_t copied = copy_payload(datagram, to, std::min<std::size_t>(room, datagram.length));
  message_.flags = datagram.length > room ? MSG_TRUNC : 0;
  if (message_.name != nullptr) {
    socklen_t length = asked_.name_length;
    copy_name(datagram.source, socket_.domain, message_.name, &length);
    message_.name_length = length;
  }
  message_.control_length = asked_.control_length;
  report_datagram(socket_, datagram, guard.context().now, message_);
  const long whole = datagram.length;
  if ((flags_ & MSG_PEEK) == 0) udp_engine().pop(guard.context(), *socket_.binding);
  return (flags_ & MSG_TRUNC) != 0 ? whole : static_cast<long>(copied);
}

// Without the lock; see kernel_half.h for the order.
long ReceivingDatagram::take_from_kernel(Guard& guard) {
  KernelHalf& half = socket_.details->half;
  half.in = false;
  socket_.users++;
  guard.pause();
  message_ = asked_;
  const long r = kernel_receive(fd_, message_, flags_ | MSG_DONTWAIT);
  guard.resume();
  socket_.users--;
  if (r == kAgain) return r;
  half.in = half.unsure = half.watched;
  if (r < 0) half.error = false;  // told
  if (socket_.waiters != nullptr) signal_idle(socket_);
  return r;
}

// --- Sending -----------------------------------------------------------------------------------------------

constexpr std::size_t kFewPieces = 16;

Error send_once(Guard& guard, Socket& socket, const Endpoint& remote, const Message& message, std::size_t& sent) {
  std::array<std::span<const std::byte>, kFewPieces> pieces;
  for (std::size_t i = 0; i < message.data.size(); i++)
    pieces[i] = {static_cast<const std::byte*>(message.data[i].iov_base), message.data[i].iov_len};
  const SendControl control = read_control(message);
  const Details& details = *socket.details;
  udp::SendOptions options;
  options.tos = control.tos.value_or(details.tos);
  options.ttl = control.ttl.value_or(remote.address.is_multicast() ? details.multicast_ttl : details.ttl);
  options.broadcast = socket.has(kBroadcast);
  const auto r = udp_engine().send(guard.context(), *socket.binding, remote, control.source,
                                   {pieces.data(), message.data.size()}, options);
  if (r.ok()) sent = *r;
  return r.error();
}

// More pieces than fit: a copy in one (rare; nothing on the data path sends so).
long send_gathered(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote);

long send_on_wire(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote) {
  if (message.data.size() > kFewPieces) return send_gathered(socket, fd, message, flags, remote);
  const Instant deadline =
      socket.send_timeout_ms == 0 ? kNever : shard().clock().now() + std::chrono::milliseconds(socket.send_timeout_ms);
  for (;;) {
    {
      Guard guard(shard());
      if (!socket.alive || socket.binding == nullptr) return failure(Refusal::kBadDescriptor);
      std::size_t sent = 0;
      Error error = send_once(guard, socket, remote, message, sent);
      if (error == Error::kWouldBlock) {
        guard.shard().poll_locked();
        error = send_once(guard, socket, remote, message, sent);
      } else {
        poll_if_stale(guard);
      }
      if (error == Error::kNone) return static_cast<long>(sent);
      if (error == Error::kNoMemory) return failure(Refusal::kNoBuffers);
      if (error != Error::kWouldBlock || non_blocking(socket, flags)) return failure(error);
      if (guard.context().now >= deadline) return kAgain;
    }
    sched_yield();  // the device's ring is full: that is a matter of microseconds
  }
}

long send_gathered(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote) {
  constexpr std::size_t kMost = 65536;
  const std::size_t bytes = total_bytes(message.data);
  if (bytes > kMost) return failure(Error::kMessageTooLarge);
  std::array<std::byte, kMost> flat;
  IoCursor from(message.data);
  from.read(flat.data(), bytes);
  const iovec one{flat.data(), bytes};
  Message whole = message;
  whole.data = {&one, 1};
  return send_on_wire(socket, fd, whole, flags, remote);
}

long send_in_kernel(Socket& socket, int fd, const Message& message, int flags) {
  if (has_binding(socket)) note_kernel_activity();
  const long r = kernel_send(fd, message, flags);
  if (r != kAgain || !has_binding(socket)) return r;
  Guard guard(shard());
  want_kernel_out(socket, fd);
  return r;
}

bool same_family(const Socket& socket, const sockaddr* name) {
  return name->sa_family == socket.domain;
}

}  // namespace

long datagram_receive(Socket& socket, int fd, Message& message, int flags) {
  const bool only_kernel = (flags & MSG_ERRQUEUE) != 0 || (!has_binding(socket) && non_blocking(socket, flags));
  if (only_kernel) return kernel_receive(fd, message, flags);
  // However many come in on the wire, the kernel's are heard.
  if (has_binding(socket) && !connected_to_bypass(socket)) look_at_kernel_halves(shard().clock().now(), false);
  ReceivingDatagram receiving(socket, fd, message, flags);
  Patience patience;
  {
    Guard guard(shard());
    if (!socket.alive) return failure(Refusal::kBadDescriptor);
    if (!connected_to_bypass(socket)) watch_kernel_half(socket, fd);
    long r = receiving.attempt(guard);
    if (r == kAgain && has_binding(socket)) {
      guard.shard().poll_locked();
      r = receiving.attempt(guard);
    } else {
      poll_if_stale(guard);
    }
    end_if_unused(guard, socket);
    if (r != kAgain) return r;
    patience = socket_patience(guard, socket.receive_timeout_ms);
    patience.block = !non_blocking(socket, flags);
    receiving.ration(!patience.block);
    socket.users++;
  }
  Pin pin(socket);
  return wait_result(wait(receiving, patience), 0);
}

long datagram_send(Socket& socket, int fd, const Message& message, int flags, bool&) {
  Endpoint remote = socket.details->peer;
  Way way = socket.details->peer_is_kernel || remote.address.is_any() ? Way::kKernel : Way::kBypass;
  if (message.name != nullptr) {
    const std::optional<Endpoint> named = endpoint_of(message.name, message.name_length);
    if (!named.has_value() || !same_family(socket, message.name) || socket.has(kV6Only | kForceKernel))
      return send_in_kernel(socket, fd, message, flags);
    remote = *named;
    way = way_to(remote, message.name);
  }
  if (way == Way::kKernel) return send_in_kernel(socket, fd, message, flags);
  if (socket.has(kShutSend)) return failure(Error::kBrokenPipe);
  if (const long r = ensure_binding(socket, fd); r != 0) return r;
  return send_on_wire(socket, fd, message, flags, remote);
}

}  // namespace bypass::socket
