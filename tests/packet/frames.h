// Frames for the tests: Ethernet, IPv4 and UDP or TCP headers with the fields that matter, and a payload of counted
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bypass::packet {

using Bytes = std::vector<std::byte>;

inline constexpr std::size_t kIp = 14, kUdp = kIp + 20, kUdpPayload = kUdp + 8;
inline constexpr std::uint8_t kProtocolTcp = 6, kProtocolUdp = 17;

inline void put16(Bytes& frame, std::size_t at, std::size_t value) {
  frame[at] = static_cast<std::byte>(value >> 8);
  frame[at + 1] = static_cast<std::byte>(value);
}

inline std::size_t get16(const std::byte* at) {
  return std::to_integer<std::size_t>(at[0]) << 8 | std::to_integer<std::size_t>(at[1]);
}

/// From 10.9.0.2 to 10.9.0.1, with an L4 header of 8 (UDP) or 20 bytes (TCP) in front of the payload.
inline Bytes make_frame(std::uint8_t protocol, std::size_t payload) {
  const std::size_t header = protocol == kProtocolUdp ? 8 : 20;
  Bytes frame(kUdp + header + payload);
  for (std::size_t i = 0; i < payload; i++) frame[kUdp + header + i] = static_cast<std::byte>(i % 251);
  put16(frame, 12, 0x0800);
  frame[kIp] = std::byte{0x45};
  put16(frame, kIp + 2, frame.size() - kIp);
  frame[kIp + 9] = std::byte{protocol};
  put16(frame, kIp + 12, 0x0a09);
  put16(frame, kIp + 14, 2);
  put16(frame, kIp + 16, 0x0a09);
  put16(frame, kIp + 18, 1);
  if (protocol == kProtocolUdp) put16(frame, kUdp + 4, header + payload);
  return frame;
}

}  // namespace bypass::packet
