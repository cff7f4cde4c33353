// Network: interfaces, routes, neighbours (ARP) and IPv4, below TCP, UDP and ICMP.
//
// Lies in the arena as a part of Stack; all calls with the shard's lock held. Inbound it turns a burst of
// frames into L4Input views; outbound it puts Ethernet and IP headers in front of an L4 packet, whose
// prefix a connection caches in its Path.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/address.h"
#include "stack/context.h"
#include "stack/frame/packet.h"
#include "stack/frame/packet_list.h"
#include "stack/result.h"

namespace bypass {

/// One received L4 packet, validated up to and including the L4 checksum. The receiver owns `packet`, whose
/// bytes end where the IP packet ends. The L4 header (TCP: with its options) is whole and lies in the head.
struct L4Input {
  Packet* packet = nullptr;  // data still points at the Ethernet header
  IpAddress source, destination;
  std::uint16_t l4_offset = 0;  // from packet->data to the L4 header
  std::uint32_t l4_len = 0;     // header and payload, over the whole chain, padding cut off
  std::uint16_t port = 0;       // index of the port it came from
  std::uint8_t protocol = 0;
  std::uint8_t tos = 0;
  bool checksum_good = false;  // verified by the port or by the stack: L4 need not sum
  bool broadcast = false;      // to a broadcast or multicast address
};

/// Where packets to one remote address go: a route, and the header prefix once the neighbour is known.
/// Kept by a connection; stays valid while `generation` is the network's.
struct Path {
  IpAddress local, remote, next_hop;
  std::uint16_t port = 0;
  std::uint16_t neighbour = 0;      // index in the neighbour table + 1; 0: unknown; kLooped, kGroup
  std::uint32_t generation = 0;     // changes when routes or neighbours do
  std::uint16_t mtu = 0;            // of the L3 packet
  std::uint16_t fragment = 0x4000;  // IPv4's flags and fragment offset: DF, unless set_fragment() (ipv4.h) changed it
  std::uint8_t tos = 0, ttl = 64;
  std::byte header[38]{};       // Ethernet and IPv4 prefix (34), then the sum of its words that never change
  std::uint8_t header_len = 0;  // bytes of `header`; 0 until resolved

  // `tos` and `ttl` may be changed at any time: they are not part of the cached prefix.
  static constexpr std::uint16_t kLooped = 0xffff;  // to an address of ours: never reaches the port
  static constexpr std::uint16_t kGroup = 0xfffe;   // broadcast or multicast: no neighbour to ask
};

/// A route through a router on the link.
struct RouteVia {
  Prefix destination;
  IpAddress gateway;
};

struct InterfaceConfig {
  MacAddress mac;
  std::uint32_t mtu = 1500;
  std::span<const Prefix> addresses;   // host address with its prefix length
  IpAddress gateway{};                 // any: none
  std::span<const RouteVia> routes{};  // beside the gateway's
  std::uint32_t kernel_index = 0;      // of the interface that the kernel keeps; 0: the port is not its
  bool steered = false;                // the kernel keeps the interface: what comes here is steered (FlowLog)
};

struct IcmpError {
  Error error = Error::kNone;  // kRefused, kHostUnreachable, kNetUnreachable, kMessageTooLarge, …
  bool hard = false;           // RFC 5461: a hard error aborts a connection attempt
  std::uint8_t type = 0, code = 0;
  std::uint32_t mtu = 0;       // with "fragmentation needed"
  std::uint8_t protocol = 0;   // of the quoted packet
  Endpoint local, remote;      // of the quoted packet: local is its source
  std::uint32_t sequence = 0;  // the quoted TCP sequence number (RFC 5927: check it)
  IpAddress offender;          // who says so
  // What was quoted behind 8 bytes of the protocol's header: of UDP the payload.
  std::uint16_t quoted_length = 0;
  std::array<std::byte, 520> quoted;  // RFC 1812 §4.3.2.3: what a message of 576 bytes has room for
};

/// A host that says that an address of ours is its.
struct AddressConflict {
  IpAddress address;  // any: there has been none
  MacAddress mac;
};

}  // namespace bypass

namespace bypass {

struct InterfaceAddress;
struct StackConfig;
struct StackCounters;
class EventList;
class FlowLog;

class Network {
 public:
  Network(Memory& memory, StackCounters& counters, const StackConfig& config);
  /// False when the memory could not hold the tables.
  [[nodiscard]] bool valid() const { return impl_ != nullptr; }

  // --- Interfaces and routes
  Result<bool> set_interface(std::uint16_t port, const InterfaceConfig& config);
  /// Other addresses, routes or another MTU for an interface that stays: neighbours stay known, and nobody is told.
  Result<bool> change_interface(std::uint16_t port, const InterfaceConfig& config);
  /// One of our addresses (on any port), or its subnet's broadcast.
  [[nodiscard]] bool is_local(const IpAddress& address) const;
  /// Fills a path to `remote`; `local` any: the route's own address is chosen. kNoRoute.
  Result<bool> resolve(const IpAddress& local, const IpAddress& remote, Path& path) const;
  /// The last one at that port.
  [[nodiscard]] AddressConflict address_conflict(std::uint16_t port) const;
  /// Moves when paths may have become stale.
  [[nodiscard]] std::uint32_t generation() const;
  /// Whether a port routes to the address (the socket layer's decision), and which.
  [[nodiscard]] bool routes(const IpAddress& remote, std::uint16_t* port = nullptr) const;

  // --- Steering
  /// Whether the port's frames have to be steered to it.
  [[nodiscard]] bool is_steered(std::uint16_t port) const;
  /// Our addresses of a port.
  [[nodiscard]] std::span<const InterfaceAddress> addresses(std::uint16_t port) const;
  [[nodiscard]] std::uint32_t mtu(std::uint16_t port) const;
  /// The kernel's number of the interface that has this address of ours; 0: it knows none.
  [[nodiscard]] std::uint32_t kernel_index(const IpAddress& own) const;
  [[nodiscard]] FlowLog& flows();

  // --- Sending
  /// Puts Ethernet and IPv4 headers in front of an L4 packet (packet->data at the L4 header, frame_len its
  /// bytes, l4_len set with offloads) and queues it for transmit. Refreshes a stale path. While the neighbour
  /// is being resolved the packet waits (bounded) or, when its memory must not be held (`external`), is
  /// dropped. Takes the packet over in any case but kWouldBlock (device full; the caller keeps it).
  Result<bool> send(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol);
  /// Sends the fragments of one L4 packet (FragmentWriter), which share an identification. Takes them over in any case
  /// but kWouldBlock, which comes before the first one; those behind the first that finds the device full are dropped.
  Result<bool> send_fragments(Context& ctx, Path& path, PacketList& fragments, std::uint8_t protocol);
  /// A frame for an L4 packet to that path, headroom reserved; null when none is left.
  Packet* alloc(Context& ctx, const Path& path);
  /// What the sender of a packet on this path may leave to the port: its capabilities, as far as the stack's
  /// configuration lets them be used. To ourselves: everything.
  struct Offloads {
    bool l4_checksum = false, gather = false;
    std::uint32_t tso_max_bytes = 0;  // payload bytes of one large TCP frame; 0: no TSO
  };
  [[nodiscard]] Offloads offloads(Context& ctx, const Path& path) const;
  /// Sends ICMP port unreachable for a datagram nobody took (rate-limited).
  void send_port_unreachable(Context& ctx, const L4Input& input);
  /// TCP made progress on this path: its neighbour is reachable (RFC 4861 §7.3.1's hint, used for ARP too).
  void confirm(Context& ctx, const Path& path);

  // --- For Stack (network_impl.h)
  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  Impl* impl_;  // in the arena
};

}  // namespace bypass
