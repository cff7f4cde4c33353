// Headers as they lie on the wire. Fields are byte arrays with big-endian accessors, so a header may lie at
// any address and its size is its wire size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stack/address.h"
#include "stack/frame/packet.h"

namespace bypass::wire {

class Be16 {
 public:
  constexpr operator std::uint16_t() const {  // NOLINT: reads like the integer it is
    return static_cast<std::uint16_t>(raw_[0] << 8 | raw_[1]);
  }
  constexpr Be16& operator=(std::uint16_t v) {
    raw_[0] = static_cast<std::uint8_t>(v >> 8);
    raw_[1] = static_cast<std::uint8_t>(v);
    return *this;
  }
  /// The two bytes as they lie: what the checksum adds.
  [[nodiscard]] std::uint16_t raw() const {
    std::uint16_t v;
    std::memcpy(&v, raw_, 2);
    return v;
  }
  void set_raw(std::uint16_t v) { std::memcpy(raw_, &v, 2); }

 private:
  std::uint8_t raw_[2];
};

class Be32 {
 public:
  operator std::uint32_t() const {  // NOLINT: reads like the integer it is
    std::uint32_t v;
    std::memcpy(&v, raw_, 4);
    return be32_to_host(v);
  }
  Be32& operator=(std::uint32_t v) {
    v = host_to_be32(v);
    std::memcpy(raw_, &v, 4);
    return *this;
  }

 private:
  std::uint8_t raw_[4];
};

inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherTypeArp = 0x0806;

inline constexpr std::uint8_t kProtocolIcmp = 1;
inline constexpr std::uint8_t kProtocolTcp = 6;
inline constexpr std::uint8_t kProtocolUdp = 17;

struct Ethernet {
  MacAddress destination, source;
  Be16 type;
};
static_assert(sizeof(Ethernet) == 14);

struct Arp {  // RFC 826, for Ethernet and IPv4
  Be16 hardware, protocol;
  std::uint8_t hardware_len, protocol_len;
  Be16 operation;
  MacAddress sender_mac;
  Be32 sender_ip;
  MacAddress target_mac;
  Be32 target_ip;
};
static_assert(sizeof(Arp) == 28);
inline constexpr std::uint16_t kArpRequest = 1;
inline constexpr std::uint16_t kArpReply = 2;

struct Ipv4 {  // RFC 791 §3.1
  std::uint8_t version_ihl;
  std::uint8_t tos;
  Be16 total_len, id, fragment;
  std::uint8_t ttl, protocol;
  Be16 checksum;
  Be32 source, destination;
  [[nodiscard]] std::size_t header_len() const { return (version_ihl & 0x0fU) * 4U; }
};
static_assert(sizeof(Ipv4) == 20);
inline constexpr std::uint16_t kDontFragment = 0x4000;
inline constexpr std::uint16_t kMoreFragments = 0x2000;
inline constexpr std::uint16_t kFragmentOffset = 0x1fff;

struct Icmp {  // RFC 792; the last two fields mean what the type says
  std::uint8_t type, code;
  Be16 checksum;
  Be16 id, sequence;  // errors: unused, next-hop MTU
};
static_assert(sizeof(Icmp) == 8);
inline constexpr std::uint8_t kIcmpEchoReply = 0;
inline constexpr std::uint8_t kIcmpUnreachable = 3;
inline constexpr std::uint8_t kIcmpEcho = 8;
inline constexpr std::uint8_t kIcmpTimeExceeded = 11;
inline constexpr std::uint8_t kIcmpParameterProblem = 12;

struct Udp {  // RFC 768
  Be16 source, destination, length, checksum;
};
static_assert(sizeof(Udp) == 8);

inline constexpr std::size_t kMinTcpHeader = 20;
inline constexpr std::size_t kHeaderPrefix = sizeof(Ethernet) + sizeof(Ipv4);

/// A header at an offset of the frame's head. The caller has checked that it lies inside.
template <typename Header>
Header& at(Packet& packet, std::size_t offset) {
  return *reinterpret_cast<Header*>(packet.data + offset);
}
template <typename Header>
const Header& at(const Packet& packet, std::size_t offset) {
  return *reinterpret_cast<const Header*>(packet.data + offset);
}
template <typename Header>
bool fits(const Packet& packet, std::size_t offset) {
  return packet.len >= offset + sizeof(Header);
}

}  // namespace bypass::wire
