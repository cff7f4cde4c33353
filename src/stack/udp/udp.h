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

/// One received datagram, as peeked: spans of the frame and where it came from.
struct Datagram {
  Endpoint source;
  IpAddress destination;     // IP_PKTINFO
  std::uint16_t port = 0;    // that it was sent to
  std::uint32_t length = 0;  // payload bytes
  std::uint8_t tos = 0, ttl = 0;
  Instant arrived{};               // SO_TIMESTAMP
  const Packet* packet = nullptr;  // chain; payload starts `offset` bytes into it
  std::uint32_t offset = 0;
};

/// What an endpoint that wants errors (IP_RECVERR) keeps of each, until it is read.
struct QueuedError {
  enum class Origin : std::uint8_t { kLocal = 1, kIcmp = 2 };  // as SO_EE_ORIGIN_… number them

  QueuedError* next = nullptr;
  Error error = Error::kNone;
  Origin origin = Origin::kIcmp;
  std::uint8_t type = 0, code = 0;
  std::uint32_t info = 0;  // the path's MTU with kMessageTooLarge
  Endpoint remote;         // that the datagram was sent to
  IpAddress offender;      // kIcmp: who says so
  Instant arrived{};
  std::uint16_t payload_length = 0;
  std::array<std::byte, 520> payload;  // of the datagram, as far as it was quoted

  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(payload).first(payload_length); }
};

struct SendOptions {
  std::uint8_t tos = 0, ttl = 64;
  bool broadcast = false;
  bool fragment = true;       // a datagram above the path's MTU goes in fragments; false: kMessageTooLarge
  bool dont_fragment = true;  // DF on one that fits
};

/// What a socket lets others do with its port (socket(7)): both must.
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

  /// Takes `local` (port 0 is not accepted: the kernel's bind chose the number). `receive_bytes` bounds the
  /// queue (payload plus buffer overhead). kAddressInUse unless both reuse in the same way.
  Result<Binding*> open(const Endpoint& local, std::uint32_t receive_bytes, Reuse reuse, void* user);
  void close(Context& ctx, Binding& endpoint);
  /// See tcp::Engine::steer_all.
  void steer_all();
  void for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const;
  /// A connected endpoint takes datagrams of that peer alone, and its ICMP errors. Any address: disconnect.
  void connect(Binding& endpoint, const Endpoint& remote);
  void set_receive_bytes(Binding& endpoint, std::uint32_t bytes);

  /// The gathered bytes as one datagram. kNoRoute, kMessageTooLarge (above 65,507 bytes, or above
  /// the MTU with options.fragment off), kNoMemory (no frame: as ENOBUFS), kWouldBlock (the device's ring is full).
  Result<std::size_t> send(Context& ctx, Binding& endpoint, const Endpoint& remote, const IpAddress& source,
                           std::span<const std::span<const std::byte>> bytes, const SendOptions& options);

  /// IP_MTU: bytes of the largest packet that is thought to reach `remote` whole.
  Result<std::uint32_t> path_mtu(Context& ctx, Binding& endpoint, const IpAddress& remote);

  [[nodiscard]] std::size_t queued(const Binding& endpoint) const;  // datagrams
  /// Bytes of memory that they take, of `receive_bytes`.
  [[nodiscard]] std::size_t queued_bytes(const Binding& endpoint) const;
  /// The oldest datagram; false when there is none. It stays valid until pop().
  bool front(const Binding& endpoint, Datagram& out) const;
  void pop(Context& ctx, Binding& endpoint);
  [[nodiscard]] Error error(const Binding& endpoint) const;
  Error take_error(Binding& endpoint);
  /// Errors are queued from now on, of unconnected endpoints, too, and not only fatal ones; off: what is queued goes.
  void want_errors(Binding& endpoint, bool on);
  /// Null: there is none.
  [[nodiscard]] const QueuedError* first_error(const Binding& endpoint) const;
  /// The next one's cause is the pending error then, as sock_dequeue_err_skb() of Linux has it.
  void pop_error(Binding& endpoint);
  /// A datagram to `remote` was too large for the path.
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
