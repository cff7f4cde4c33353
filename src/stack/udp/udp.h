// UDP (RFC 768) of one shard: endpoints, their receive queues, and sending.
//
// A datagram socket of the program is dual (kernel and bypass); this is its bypass half. Lies in the arena.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/address.h"
#include "stack/context.h"
#include "stack/events.h"
#include "stack/ip/network.h"
#include "stack/memory/memory.h"
#include "stack/result.h"

namespace bypass {
class Network;
struct StackCounters;
}  // namespace bypass

namespace bypass::udp {

struct Binding;  // udp.cc; begins with an EventNode

/// One received datagram, as peeked: spans of the frame, and the sender.
struct Datagram {
  Endpoint source;
  IpAddress destination;     // IP_PKTINFO
  std::uint16_t port = 0;    // the port that it was sent to
  std::uint32_t length = 0;  // payload bytes
  std::uint8_t tos = 0, ttl = 0;
  Instant arrived{};               // SO_TIMESTAMP
  const Packet* packet = nullptr;  // chain; payload starts `offset` bytes into it
  std::uint32_t offset = 0;
};

/// One error, which an endpoint with IP_RECVERR keeps until it is read.
struct QueuedError {
  enum class Origin : std::uint8_t { kLocal = 1, kIcmp = 2 };  // as SO_EE_ORIGIN_… number them

  QueuedError* next = nullptr;
  Error error = Error::kNone;
  Origin origin = Origin::kIcmp;
  std::uint8_t type = 0, code = 0;
  std::uint32_t info = 0;  // the path's MTU with kMessageTooLarge
  Endpoint remote;         // where the datagram was sent to
  IpAddress offender;      // kIcmp: the sender of the error
  Instant arrived{};
  std::uint16_t payload_length = 0;
  std::array<std::byte, 520> payload;  // the datagram's payload, as far as it was quoted

  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(payload).first(payload_length); }
};

struct SendOptions {
  std::uint8_t tos = 0, ttl = 64;
  bool broadcast = false;
  bool fragment = true;       // a datagram above the path's MTU is sent in fragments; false: kMessageTooLarge
  bool dont_fragment = true;  // sets DF on a datagram that fits
};

/// What a socket allows others to do with its port (socket(7)); both sockets must allow it.
struct Reuse {
  bool address = false;  // SO_REUSEADDR: the newest one gets the datagrams
  bool port = false;     // SO_REUSEPORT: each gets its part of the flows
};

class Engine {
 public:
  Engine(Memory& memory, Network& network, EventList& events, StackCounters& counters);
  /// False when the memory could not hold the tables.
  [[nodiscard]] bool valid() const { return impl_ != nullptr; }

  void on_datagrams(Context& ctx, std::span<L4Input> batch);
  void on_icmp(Context& ctx, const IcmpError& error);

  /// Binds an endpoint to `local` (port 0 is not accepted: the kernel's bind chose the number). `receive_bytes` limits
  /// the queue (payload plus buffer overhead). kAddressInUse unless both allow the same kind of reuse.
  Result<Binding*> open(const Endpoint& local, std::uint32_t receive_bytes, Reuse reuse, void* user);
  void close(Context& ctx, Binding& endpoint);
  /// See tcp::Engine::steer_all.
  void steer_all();
  void for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const;
  /// A connected endpoint takes datagrams and ICMP errors of that peer only. An unset address disconnects.
  void connect(Binding& endpoint, const Endpoint& remote);
  void set_receive_bytes(Binding& endpoint, std::uint32_t bytes);

  /// Sends the gathered bytes as one datagram. kNoRoute, kMessageTooLarge (above 65,507 bytes, or above the MTU with
  /// options.fragment off), kNoMemory (no frame: as ENOBUFS), kWouldBlock (the device's ring is full).
  Result<std::size_t> send(Context& ctx, Binding& endpoint, const Endpoint& remote, const IpAddress& source,
                           std::span<const std::span<const std::byte>> bytes, const SendOptions& options);

  /// Whether the way to `remote` is through a device that has been taken away.
  [[nodiscard]] bool is_cut_off(Context& ctx, const Binding& endpoint, const IpAddress& remote) const;

  /// IP_MTU: bytes of the largest packet that is believed to reach `remote` in one piece.
  Result<std::uint32_t> path_mtu(Context& ctx, Binding& endpoint, const IpAddress& remote);

  [[nodiscard]] std::size_t queued(const Binding& endpoint) const;  // datagrams
  /// Bytes of memory that the queue uses, out of `receive_bytes`.
  [[nodiscard]] std::size_t queued_bytes(const Binding& endpoint) const;
  /// The oldest datagram; false if there is none. It stays valid until pop().
  bool front(const Binding& endpoint, Datagram& out) const;
  void pop(Context& ctx, Binding& endpoint);
  [[nodiscard]] Error error(const Binding& endpoint) const;
  Error take_error(Binding& endpoint);
  /// On: errors are queued from now on, for unconnected endpoints too, and not only fatal ones. Off: removes what is
  /// queued.
  void want_errors(Binding& endpoint, bool on);
  /// Null: the queue is empty.
  [[nodiscard]] const QueuedError* first_error(const Binding& endpoint) const;
  /// Removes the first error. The next error's cause becomes the pending error, as in sock_dequeue_err_skb() of Linux.
  void pop_error(Binding& endpoint);
  /// Queues the error that a datagram to `remote` was too large for the path.
  void queue_local_error(Context& ctx, Binding& endpoint, const Endpoint& remote);
  [[nodiscard]] Endpoint local(const Binding& endpoint) const;
  [[nodiscard]] Endpoint remote(const Binding& endpoint) const;

  /// See Stack::move_frames_to_arena.
  std::size_t move_frames_to_arena(Context& ctx);
  void rebuild(Context& ctx, void* broken);
  /// As tcp::Engine's.
  void forget_users();
  bool claim(Binding* endpoint, void* user);
  void end_unclaimed(Context& ctx);
  [[nodiscard]] void* current() const;

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace bypass::udp
