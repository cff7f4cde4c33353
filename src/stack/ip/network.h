// Network: interfaces, routes, neighbours (ARP) and IPv4, below TCP, UDP and ICMP.
//
// It lies in the arena as a part of Stack. The caller of every function holds the shard's lock. Inbound it turns a
// burst of frames into L4Input views. Outbound it puts Ethernet and IP headers before an L4 packet; a connection caches
// this prefix in its Path.
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

/// The way to one remote address: a route, and the header prefix once the neighbour is known. A connection keeps it. It
/// is valid while `generation` equals the network's.
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
  static constexpr std::uint16_t kLooped = 0xffff;  // to an address of ours: never sent to the port
  static constexpr std::uint16_t kGroup = 0xfffe;   // broadcast or multicast: no neighbour is asked
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
  IpAddress gateway{};                 // unset: no gateway
  std::span<const RouteVia> routes{};  // routes beside the gateway's
  // the kernel's number of the interface that it keeps; 0: the kernel has no interface for the port
  std::uint32_t kernel_index = 0;
  bool steered = false;  // the kernel keeps the interface, and our flows are steered to the port (FlowLog)
};

struct IcmpError {
  Error error = Error::kNone;  // kRefused, kHostUnreachable, kNetUnreachable, kMessageTooLarge, …
  bool hard = false;           // RFC 5461: a hard error aborts a connection attempt
  std::uint8_t type = 0, code = 0;
  std::uint32_t mtu = 0;       // the next hop's, with "fragmentation needed"
  std::uint8_t protocol = 0;   // the quoted packet's protocol
  Endpoint local, remote;      // the quoted packet's ends: local is its source
  std::uint32_t sequence = 0;  // the quoted TCP sequence number (RFC 5927: check it)
  IpAddress offender;          // the sender of the error
  // The quoted bytes after the first 8 of the protocol's header: for UDP, the payload.
  std::uint16_t quoted_length = 0;
  std::array<std::byte, 520> quoted;  // RFC 1812 §4.3.2.3: as much as a message of 576 bytes can hold
};

/// A host that claims an address of ours.
struct AddressConflict {
  IpAddress address;  // unset: no conflict was seen
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
  /// Changes addresses, routes or the MTU of an interface that stays: known neighbours are kept, and nothing is
  /// announced.
  Result<bool> change_interface(std::uint16_t port, const InterfaceConfig& config);
  /// True for each of our addresses (on any port), and for the broadcast address of its subnet.
  [[nodiscard]] bool is_local(const IpAddress& address) const;
  /// Fills a path to `remote`. If `local` is unset, the route's own address is chosen. kNoRoute.
  Result<bool> resolve(const IpAddress& local, const IpAddress& remote, Path& path) const;
  /// The last conflict at that port.
  [[nodiscard]] AddressConflict address_conflict(std::uint16_t port) const;
  /// A number that changes when paths may have become stale.
  [[nodiscard]] std::uint32_t generation() const;
  /// Whether a port routes to the address, and which port. The socket layer decides by this.
  [[nodiscard]] bool routes(const IpAddress& remote, std::uint16_t* port = nullptr) const;

  // --- Steering
  /// Whether the port's frames have to be steered to it.
  [[nodiscard]] bool is_steered(std::uint16_t port) const;
  /// Our addresses at a port.
  [[nodiscard]] std::span<const InterfaceAddress> addresses(std::uint16_t port) const;
  [[nodiscard]] std::uint32_t mtu(std::uint16_t port) const;
  /// The kernel's number of the interface that has this address of ours; 0: the kernel has no such interface.
  [[nodiscard]] std::uint32_t kernel_index(const IpAddress& own) const;
  [[nodiscard]] FlowLog& flows();

  // --- Sending
  /// Puts Ethernet and IPv4 headers in front of an L4 packet (packet->data at the L4 header, frame_len its
  /// bytes, l4_len set with offloads) and queues it for transmit. Refreshes a stale path. While the neighbour
  /// is being resolved the packet waits (bounded) or, when its memory must not be held (`external`), is
  /// dropped. Takes the packet over in any case but kWouldBlock (device full; the caller keeps it).
  Result<bool> send(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol);
  /// Sends the fragments of one L4 packet (FragmentWriter), which share an identification. Takes them over unless it
  /// returns kWouldBlock, which it decides before the first fragment. If the device is full later, the rest of the
  /// fragments is dropped.
  Result<bool> send_fragments(Context& ctx, Path& path, PacketList& fragments, std::uint8_t protocol);
  /// Allocates a frame for an L4 packet on that path, with headroom; null if no frame is left.
  Packet* alloc(Context& ctx, const Path& path);
  /// The work that the sender of a packet on this path may leave to the port: the port's capabilities, as far as the
  /// configuration allows them. On the path to ourselves: everything.
  struct Offloads {
    bool l4_checksum = false, gather = false;
    std::uint32_t tso_max_bytes = 0;  // payload bytes of one large TCP frame; 0: no TSO
  };
  [[nodiscard]] Offloads offloads(Context& ctx, const Path& path) const;
  /// Sends ICMP "port unreachable" for a datagram without a receiver (rate-limited).
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
