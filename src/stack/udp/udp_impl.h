// The inside of udp::Engine: a datagram endpoint, and the table of endpoints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/counters.h"
#include "stack/frame/checksum.h"
#include "stack/frame/packet_list.h"
#include "stack/memory/slab.h"
#include "stack/udp/udp.h"

namespace bypass::udp {

struct Binding {
  EventNode event;  // first, as the event list knows only the node
  Endpoint local, remote;
  bool connected = false;
  bool steered = false;  // FlowLog has noted it
  Reuse reuse;
  Error error = Error::kNone;
  bool wants_errors = false;
  QueuedError* errors = nullptr;
  QueuedError* last_error = nullptr;
  std::uint32_t limit = 0;    // limit of `charged`
  std::uint32_t charged = 0;  // memory that the queue holds: payload, headers and the buffers around them
  PacketList queue;
  Binding* next = nullptr;  // next in the hash bucket; newest first
  IpAddress path_source;    // the source that `path` was resolved for; unset: the route's
  Path path;                // the path of the last datagram
  // What a router has reported (RFC 1191): the MTU of the path to `narrow_remote`, until that time.
  IpAddress narrow_remote;
  std::uint32_t narrow_mtu = 0;
  Instant narrow_until{};
};

struct Engine::Impl {
  Impl(Memory& memory_in, Network& network_in, EventList& events_in, StackCounters& counters_in)
      : memory(memory_in), network(network_in), events(events_in), counters(counters_in) {}

  // --- Input (udp_input.cc)
  void take(Context& ctx, const L4Input& input);
  void on_icmp(Context& ctx, const IcmpError& error);
  void narrow(Context& ctx, Binding& binding, const IcmpError& error);
  // --- Errors (udp_errors.cc)
  /// A new entry; null: there is no room.
  QueuedError* queue_error(Context& ctx, Binding& binding);
  void keep_error(Context& ctx, Binding& binding, const IcmpError& error);
  void drop_errors(Binding& binding);
  [[nodiscard]] Binding* find(const L4Input& input) const;
  void deliver(Context& ctx, Binding& binding, const L4Input& input);
  /// Delivers a broadcast to all endpoints that match.
  void deliver_all(Context& ctx, const L4Input& input);
  void release(Context& ctx, Packet* frame);
  std::size_t move_queue_to_arena(Context& ctx, Binding& binding);
  void empty_queue(Context& ctx, Binding& binding);

  // --- Output (udp.cc)
  Result<bool> route(Context& ctx, Binding& binding, const IpAddress& remote, const IpAddress& source,
                     const SendOptions& options);
  using Pieces = std::span<const std::span<const std::byte>>;
  Result<bool> send_whole(Context& ctx, Binding& binding, std::uint16_t to_port, const Pieces& bytes);
  Result<bool> send_in_fragments(Context& ctx, Binding& binding, std::uint16_t to_port, const Pieces& bytes,
                                 std::size_t length);
  void fill_header(Packet& frame, const Binding& binding, std::uint16_t to_port, std::uint32_t l4_len,
                   PartialSum payload, bool offload) const;

  Binding*& bucket(std::uint16_t port) { return buckets[port % buckets.size()]; }
  [[nodiscard]] Binding* bucket(std::uint16_t port) const { return buckets[port % buckets.size()]; }
  void link(Binding& binding);
  void unlink(Binding& binding);
  void rebuild_queue(Context& ctx, Binding& binding, bool give_up);

  Memory& memory;
  Network& network;
  EventList& events;
  StackCounters& counters;
  Slab<Binding> bindings{memory};
  std::array<Binding*, 256> buckets{};
  std::uint32_t held_frames = 0;  // ports' frames that lie in queues
  void* current = nullptr;
};

}  // namespace bypass::udp
