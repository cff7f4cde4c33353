// Datagrams received from the wire and from the kernel's half, and the choice of the half for each datagram that is
// sent.
// Tests: tests/socket/datagram_test.cc, tests/socket/report_test.cc.
#include <sys/syscall.h>

#include <algorithm>
#include <array>

#include "os/io_cursor.h"
#include "os/os.h"
#include "socket/control_message.h"
#include "socket/datagram/datagram.h"
#include "socket/family/receivers.h"
#include "socket/kernel_message.h"
#include "socket/policy.h"
#include "socket/stream/stream_send.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

namespace {

// --- Receiving ---------------------------------------------------------------------------------------------

class ReceivingDatagram final : public DualCondition {
 public:
  ReceivingDatagram(Socket& socket, Message& message, int flags)
      : DualCondition(socket, kIn), message_(message), asked_(message), flags_(flags) {}

  long attempt(Guard& guard) override;
  [[nodiscard]] bool needs_wire() const override { return has_binding(socket_); }

 private:
  long take_from_wire(Guard& guard, const udp::Datagram& datagram);
  long take_from_kernel(Guard& guard);

  Message& message_;
  const Message asked_;  // the original room: a failed attempt must not reduce it
  int flags_;
};

long ReceivingDatagram::attempt(Guard& guard) {
  for (;;) {
    if (const long r = pending_error_of(socket_); r != 0) return r;
    udp::Datagram first;
    const bool wire_has = socket_.binding != nullptr && udp_engine().front(*socket_.binding, first);
    const KernelHalf& half = kernel_half_state(socket_);
    const bool kernel_has = has_kernel_half(socket_) && (half.in || half.error);
    // As Linux (__skb_recv_udp): only a blocking call sees that the receiving end is shut.
    if (!wire_has && !kernel_has) return socket_.has(kShutReceive) && !non_blocking(socket_, flags_) ? 0 : again();
    const bool from_kernel = kernel_has && (!wire_has || socket_.has(kKernelTurn));
    if ((flags_ & MSG_PEEK) == 0) socket_.set(kKernelTurn, !from_kernel);
    const long r = from_kernel ? take_from_kernel(guard) : take_from_wire(guard, first);
    if (r != kAgain) return r;
  }
}

bool copy_payload(const udp::Datagram& datagram, IoCursor& to, std::size_t bytes) {
  std::size_t skip = datagram.offset, left = bytes;
  for (const Packet* p = datagram.packet; p != nullptr && left != 0; p = p->next_segment) {
    const std::size_t from = std::min<std::size_t>(skip, p->len);
    const std::size_t n = std::min<std::size_t>(p->len - from, left);
    if (!to.write(p->data + from, n)) return false;
    skip -= from;
    left -= n;
  }
  return true;
}

long ReceivingDatagram::take_from_wire(Guard& guard, const udp::Datagram& datagram) {
  IoCursor to(message_.data);
  const std::size_t room = total_bytes(message_.data);
  const std::size_t copied = std::min<std::size_t>(room, datagram.length);
  if (!copy_payload(datagram, to, copied)) {  // the datagram is lost, as in udp_recvmsg()
    if ((flags_ & MSG_PEEK) == 0) udp_engine().pop(guard.context(), *socket_.binding);
    return failure(Refusal::kBadPointer);
  }
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

long ReceivingDatagram::take_from_kernel(Guard& guard) {
  message_ = asked_;
  return ask_kernel(guard, [this](int number) { return kernel_receive(number, message_, flags_ | MSG_DONTWAIT); });
}

long send_in_kernel(Socket& socket, int fd, const Message& message, int flags) {
  if (has_binding(socket)) note_kernel_activity();
  const long r = kernel_send(fd, message, flags);
  if (r != kAgain || !has_binding(socket)) return r;
  Guard guard(shard());
  want_kernel_out(socket);
  return r;
}

// splice_to_socket() of Linux holds the bytes back (MSG_MORE) until the last ones have come.
long send_file_on_wire(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count) {
  std::array<std::byte, kMostPayload + 1> bytes;
  off_t at = offset != nullptr ? *offset : os::call(SYS_lseek, in_fd, 0, SEEK_CUR);
  const bool has_place = at >= 0;  // else a pipe
  const long n = read_file(in_fd, has_place ? &at : nullptr, bytes.data(), std::min(count, bytes.size()));
  if (n <= 0) return n;
  const iovec part{bytes.data(), static_cast<std::size_t>(n)};
  Message message;
  message.data = {&part, 1};
  bool sigpipe = false;
  const long r = datagram_send(socket, fd, message, 0, sigpipe);
  if (r < 0 || !has_place) return r;
  offset != nullptr ? void(*offset = at) : void(os::call(SYS_lseek, in_fd, at, SEEK_SET));
  return r;
}

// Receives on a socket that only the kernel has, as far as we know. The call waits there, or not, as its flags say.
long receive_in_kernel(Socket& socket, int fd, Message& message, int flags) {
  const long r = kernel_receive(fd, message, flags);
  if (!has_kernel_half(socket)) return r;
  Guard guard(shard());
  KernelHalf* const half = kernel_half(socket);
  if (half == nullptr || !half->watched) return r;
  doubt_kernel_half(*half);
  return r;
}

// Returns the oldest queued error. kAgain: the queue is empty.
long receive_error(Socket& socket, Message& message) {
  Guard guard(shard());
  if (socket.binding == nullptr) return kAgain;
  const udp::QueuedError* const error = udp_engine().first_error(*socket.binding);
  if (error == nullptr) return kAgain;
  const std::size_t copied = std::min(total_bytes(message.data), error->bytes().size());
  if (!IoCursor(message.data).write(error->bytes().data(), copied)) {  // the error is lost, as in ip_recv_error()
    udp_engine().pop_error(*socket.binding);
    return failure(Refusal::kBadPointer);
  }
  message.flags = MSG_ERRQUEUE | (copied < error->bytes().size() ? MSG_TRUNC : 0);
  if (message.name != nullptr) {
    socklen_t length = message.name_length;
    copy_name(error->remote, socket.domain, message.name, &length);
    message.name_length = length;
  }
  report_error(socket, *error, guard.context().now, message);
  udp_engine().pop_error(*socket.binding);
  return static_cast<long>(copied);
}

bool same_family(const Socket& socket, const sockaddr* name) {
  return name->sa_family == socket.domain;
}

// The wire's error that waits. It comes before all that a call could do (sock_alloc_send_pskb() of Linux).
long error_before_send(Socket& socket) {
  const Guard guard(shard());
  return pending_error_of(socket);
}

}  // namespace

long datagram_receive(Socket& socket, int fd, Message& message, int flags) {
  if ((flags & MSG_ERRQUEUE) != 0) {
    if (const long r = receive_error(socket, message); r != kAgain) return r;
  }
  const bool only_kernel = (flags & MSG_ERRQUEUE) != 0 || (!has_binding(socket) && non_blocking(socket, flags));
  if (only_kernel) return receive_in_kernel(socket, fd, message, flags);
  // However many datagrams come in on the wire, the kernel's half is read as well.
  if (has_binding(socket) && !connected_to_bypass(socket)) look_at_kernel_halves(shard().clock().now(), false);
  if (has_binding(socket)) policy.open_wire_for_wait();
  ReceivingDatagram receiving(socket, message, flags);
  Patience patience;
  {
    Guard guard(shard());
    if (!socket.alive) return failure(Refusal::kBadDescriptor);
    if (!connected_to_bypass(socket)) watch_kernel_half(socket, fd);
    note_receiver(socket);
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
    hold(socket);
  }
  Pin pin(socket);
  return wait_result(wait_on(receiving, patience), 0);
}

long datagram_send_file(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count) {
  const bool on_wire = socket.details->corked != nullptr || connected_to_bypass(socket);
  if (on_wire && ensure_binding(socket, fd)) return send_file_on_wire(socket, fd, in_fd, offset, count);
  if (has_binding(socket)) note_kernel_activity();
  return os::call(SYS_sendfile, fd, in_fd, os::address(offset), static_cast<long>(count));
}

long datagram_send(Socket& socket, int fd, const Message& message, int flags, bool&) {
  Details& details = *socket.details;
  Endpoint remote = details.peer;
  Decision way = details.peer_is_kernel || remote.address.is_any() ? Decision::kKernel : Decision::kBypass;
  if (details.corked != nullptr) {  // the rest of a datagram goes the same way as its beginning
    remote = details.corked_to;
    way = Decision::kBypass;
  } else if (message.name != nullptr) {
    const std::optional<Endpoint> named = endpoint_of(message.name, message.name_length);
    const bool refused = !named.has_value() || named->port == 0 || !same_family(socket, message.name);
    if (refused || socket.has(kV6Only | kForceKernel)) return send_in_kernel(socket, fd, message, flags);
    remote = *named;
    way = way_to(remote, message.name);
  }
  if (way == Decision::kFail) return failure(Error::kAccess);
  if ((flags & MSG_OOB) != 0) return failure(Error::kNotSupported);
  if (way == Decision::kKernel || !ensure_binding(socket, fd)) {
    const long waiting = has_binding(socket) ? error_before_send(socket) : 0;
    return waiting != 0 ? waiting : send_in_kernel(socket, fd, message, flags);
  }
  if (socket.has(kShutSend)) {
    const long waiting = error_before_send(socket);
    return waiting != 0 ? waiting : failure(Error::kBrokenPipe);
  }
  const bool corked = details.corked != nullptr || details.cork || (flags & MSG_MORE) != 0;
  return corked ? send_corked(socket, fd, message, flags, remote) : send_on_wire(socket, fd, message, flags, remote);
}

}  // namespace bypass::socket
