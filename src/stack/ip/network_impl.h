// Network::Impl: the tables below Network, and the functions that only Stack calls.
#pragma once

#include <array>
#include <cstdint>

#include "stack/counters.h"
#include "stack/frame/flow_log.h"
#include "stack/frame/packet_list.h"
#include "stack/ip/arp.h"
#include "stack/ip/ip_fragments.h"
#include "stack/ip/network.h"
#include "stack/ip/rate_limit.h"
#include "stack/ip/route.h"
#include "stack/memory/memory.h"

namespace bypass {

struct Network::Impl {
  Impl(Memory& memory_in, StackCounters& counters_in, const StackConfig& config);

  // --- Input
  /// Handles link layer and IP of one received frame. True: `input` is an L4 packet for us, unverified above IP. False:
  /// the frame was handled completely.
  bool receive(Context& ctx, std::uint16_t port, Packet* frame, L4Input& input);
  /// Does the same for a frame of our own from `looped`.
  bool receive_looped(Context& ctx, Packet* frame, L4Input& input);
  void on_timers(Context& ctx);
  [[nodiscard]] Instant next_timeout() const;
  /// Moves frames to the arena that wait for a neighbour or for other fragments (frames in `looped` lie there already).
  /// Returns how many could not be moved.
  std::size_t move_frames_to_arena(Context& ctx);
  /// Marks the tables' memory, and forgets neighbours and frames under way.
  void rebuild(Context& ctx);

  // --- Output
  Result<bool> send(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol, std::uint16_t id);
  Result<bool> send_slow(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol, std::uint16_t id);
  Result<bool> send_fragments(Context& ctx, Path& path, PacketList& list, std::uint8_t protocol);
  [[nodiscard]] Result<bool> resolve(const IpAddress& local, const IpAddress& remote, Path& path) const;

  /// IPv4's identification for the next datagram on the path that may be fragmented.
  [[nodiscard]] std::uint16_t identification(const Path& path, std::uint8_t protocol);

  Memory& memory;
  StackCounters& counters;
  RouteTable routes;
  FlowLog flows;
  Arp arp;
  IpFragments fragments;
  tcp::Secret fragment_secret;
  /// Identifications given so far, by a keyed hash of addresses and protocol. What one peer sees reveals nothing about
  /// the datagrams to another, unless both fall into one place.
  std::array<std::uint16_t, 256> identifications{};
  PacketList looped;  // frames to ourselves, delivered at the next poll
  std::size_t looped_bytes = 0;
  Instant looped_since{};
  RateLimit echo_limit;
  RateLimit error_limit;
  bool checksum_offload, tso;

 private:
  void release_stranded(Context& ctx);
  bool receive_ipv4(Context& ctx, std::uint16_t port, Packet* frame, bool group, L4Input& input);
  Packet* copy_in_need(const Packet& packet);
  Result<bool> loop(Context& ctx, const Path& path, Packet* packet, std::uint8_t protocol, std::uint16_t id);
  Result<bool> send_unresolved(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol, std::uint16_t id,
                               std::uint16_t name);
};

}  // namespace bypass
