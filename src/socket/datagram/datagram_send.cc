// Datagrams sent over the wire, and the part of one that MSG_MORE or UDP_CORK holds back (udp(7)).
// Tests: tests/socket/datagram_test.cc.
#include <netinet/in.h>

#include <algorithm>
#include <array>

#include "os/errno_map.h"
#include "os/io_cursor.h"
#include "os/own/let_others_run.h"
#include "socket/control_message.h"
#include "socket/datagram/datagram.h"
#include "socket/objects.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

namespace {

constexpr std::size_t kFewPieces = 16;
/// UDP_MAX_SEGMENTS of Linux.
constexpr std::size_t kMostSegments = 128;
/// How long a datagram waits for room on the device before it is lost, as in a full transmit queue of the kernel. The
/// other end either takes microseconds or is stopped.
constexpr Duration kDevicePatience = std::chrono::milliseconds(10);
constexpr Duration kDevicePatienceNonBlocking = std::chrono::microseconds(100);

/// One send: as many datagrams as UDP_SEGMENT makes of the message.
class WireSend {
 public:
  WireSend(Socket& socket, const Message& message, const Endpoint& remote)
      : socket_(socket), message_(message), remote_(remote), control_(read_control(message)) {
    total_ = total_bytes(message.data);
    const std::size_t segment = control_.segment_bytes.value_or(socket.details->segment_bytes);
    step_ = segment == 0 ? total_ : std::min(segment, total_);
  }

  [[nodiscard]] long refusal() const {
    if (total_ > kMostPayload) return failure(Error::kMessageTooLarge);
    if (control_.refusal != 0) return control_.refusal;
    return total_ > step_ * kMostSegments ? failure(Error::kInvalid) : 0;
  }
  /// Sends the rest. kWouldBlock: the device's ring is full.
  Error go_on(Guard& guard) {
    do {
      const Error error = send_one(guard, std::min(step_, total_ - sent_));
      if (error != Error::kNone) return error;
    } while (sent_ < total_);
    return Error::kNone;
  }
  [[nodiscard]] long total() const { return static_cast<long>(total_); }

 private:
  using Pieces = std::array<std::span<const std::byte>, kFewPieces>;

  /// ip_sk_ignore_df() and ip_dont_fragment() of Linux. A datagram that UDP_SEGMENT made is never fragmented.
  static void set_discovery(udp::SendOptions& options, int discovery) {
    options.fragment = discovery == IP_PMTUDISC_DONT || discovery == IP_PMTUDISC_WANT || discovery == IP_PMTUDISC_OMIT;
    options.dont_fragment =
        discovery == IP_PMTUDISC_WANT || discovery == IP_PMTUDISC_DO || discovery == IP_PMTUDISC_PROBE;
  }
  /// The message's bytes from `sent_` on, in pieces.
  std::size_t cut(std::size_t bytes, Pieces& pieces) const {
    std::size_t count = 0, skip = sent_;
    for (const iovec& v : message_.data) {
      const std::size_t from = std::min(skip, v.iov_len);
      const std::size_t n = std::min(v.iov_len - from, bytes);
      if (n != 0) pieces[count++] = {static_cast<const std::byte*>(v.iov_base) + from, n};
      skip -= from;
      bytes -= n;
    }
    return count;
  }
  Error send_one(Guard& guard, std::size_t bytes) {
    Pieces pieces;
    const std::size_t count = cut(bytes, pieces);
    const Details& details = *socket_.details;
    udp::SendOptions options;
    options.tos = control_.tos.value_or(details.tos);
    options.ttl = control_.ttl.value_or(remote_.address.is_multicast() ? details.multicast_ttl : details.ttl);
    options.broadcast = socket_.has(kBroadcast);
    set_discovery(options, bytes < total_ ? IP_PMTUDISC_DO : details.mtu_discovery);
    const auto r =
        udp_engine().send(guard.context(), *socket_.binding, remote_, control_.source, {pieces.data(), count}, options);
    if (r.ok()) sent_ += bytes;
    return r.error();
  }

  Socket& socket_;
  const Message& message_;
  const Endpoint& remote_;
  SendControl control_;
  std::size_t total_, step_, sent_ = 0;
};

// There are more pieces than fit: copies them into one (rare; nothing on the data path sends so).
long send_gathered(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote) {
  const std::size_t bytes = total_bytes(message.data);
  if (bytes > kMostPayload) return failure(Error::kMessageTooLarge);
  std::array<std::byte, kMostPayload> flat;
  IoCursor from(message.data);
  if (!from.read(flat.data(), bytes)) return failure(Refusal::kBadPointer);
  const iovec one{flat.data(), bytes};
  Message whole = message;
  whole.data = {&one, 1};
  return send_on_wire(socket, fd, whole, flags, remote);
}

/// What was assembled so far. The sending thread takes it from the socket.
struct Corked {
  std::byte* block = nullptr;
  std::uint32_t bytes = 0;
  Endpoint remote;
};

Corked take_corked(Details& details) {
  const Corked taken{details.corked, details.corked_bytes, details.corked_to};
  details.corked = nullptr;
  details.corked_bytes = 0;
  return taken;
}

long send_taken(Socket& socket, int fd, const Corked& taken, Message message, int flags) {
  const iovec one{taken.block, taken.bytes};
  message.data = {&one, 1};
  const long r = send_on_wire(socket, fd, message, flags, taken.remote);
  Guard guard(shard());
  objects->memory.release(taken.block);
  return r;
}

// A failure drops what was assembled, as udp_flush_pending_frames() does.
long append(Details& details, const Message& message, const Endpoint& remote) {
  if (details.corked == nullptr) {
    details.corked = static_cast<std::byte*>(objects->memory.allocate(kMostPayload));
    details.corked_to = remote;
  }
  if (details.corked == nullptr) return failure(Refusal::kNoBuffers);
  const std::size_t bytes = total_bytes(message.data);
  if (bytes > kMostPayload - details.corked_bytes) {
    drop_corked(details);
    return failure(Error::kMessageTooLarge);
  }
  IoCursor from(message.data);
  if (!from.read(details.corked + details.corked_bytes, bytes)) {
    drop_corked(details);
    return failure(Refusal::kBadPointer);
  }
  details.corked_bytes += static_cast<std::uint32_t>(bytes);
  return static_cast<long>(bytes);
}

}  // namespace

long send_on_wire(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote) {
  if (message.data.size() > kFewPieces) return send_gathered(socket, fd, message, flags, remote);
  WireSend sending(socket, message, remote);
  if (const long r = sending.refusal(); r != 0) return r;
  for (const iovec& part : message.data)
    if (!is_readable(part.iov_base, part.iov_len)) return failure(Refusal::kBadPointer);
  const Instant deadline =
      shard().clock().now() + (non_blocking(socket, flags) ? kDevicePatienceNonBlocking : kDevicePatience);
  for (;;) {
    {
      Guard guard(shard());
      if (!socket.alive || socket.binding == nullptr) return failure(Refusal::kBadDescriptor);
      if (const long r = pending_error_of(socket); r != 0) return r;
      if (message.name == nullptr) socket.route_dropped = 0;
      Error error = sending.go_on(guard);
      if (error == Error::kWouldBlock) {
        guard.shard().poll_locked();
        error = sending.go_on(guard);
      } else {
        poll_if_stale(guard);
      }
      if (error == Error::kNone) return sending.total();
      if (error == Error::kNoMemory) return failure(Refusal::kNoBuffers);
      if (error == Error::kMessageTooLarge && socket.has(kWantErrors))
        udp_engine().queue_local_error(guard.context(), *socket.binding, remote);
      if (error != Error::kWouldBlock) return failure(error);
      if (guard.context().now >= deadline) {
        shard().stack().counters().drop_udp_device++;
        return sending.total();
      }
    }
    let_others_run();
  }
}

long send_corked(Socket& socket, int fd, const Message& message, int flags, const Endpoint& remote) {
  Corked taken;
  long added = 0;
  {
    Guard guard(shard());
    if (!socket.alive || socket.binding == nullptr) return failure(Refusal::kBadDescriptor);
    added = append(*socket.details, message, remote);
    if (added < 0 || socket.details->cork || (flags & MSG_MORE) != 0) return added;
    taken = take_corked(*socket.details);
  }
  const long r = send_taken(socket, fd, taken, message, flags);
  return r < 0 ? r : added;
}

void datagram_uncork(Socket& socket, int fd) {
  Corked taken;
  {
    Guard guard(shard());
    if (socket.details->cork || socket.details->corked == nullptr) return;
    taken = take_corked(*socket.details);
  }
  (void)send_taken(socket, fd, taken, {}, 0);
}

void drop_corked(Details& details) {
  if (details.corked != nullptr) objects->memory.release(take_corked(details).block);
}

}  // namespace bypass::socket
