// Addresses in wire order. One IP type for both families: IPv4 lies in it v4-mapped (RFC 4291 §2.5.5.2),
// so that sockets, flow keys and routes need no second form when the IPv6 wire comes.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bypass {

static_assert(std::endian::native == std::endian::little, "the shifts and swaps below say so");

constexpr std::uint16_t host_to_be16(std::uint16_t v) {
  return __builtin_bswap16(v);
}
constexpr std::uint32_t host_to_be32(std::uint32_t v) {
  return __builtin_bswap32(v);
}
constexpr std::uint16_t be16_to_host(std::uint16_t v) {
  return __builtin_bswap16(v);
}
constexpr std::uint32_t be32_to_host(std::uint32_t v) {
  return __builtin_bswap32(v);
}

struct MacAddress {
  std::array<std::uint8_t, 6> bytes{};
  auto operator<=>(const MacAddress&) const = default;
  // Written out, because the library's comparison of arrays is a call.
  constexpr bool operator==(const MacAddress& other) const {
    const auto a = std::bit_cast<std::array<std::uint16_t, 3>>(bytes);
    const auto b = std::bit_cast<std::array<std::uint16_t, 3>>(other.bytes);
    return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2])) == 0;
  }
  [[nodiscard]] constexpr bool is_multicast() const { return (bytes[0] & 1) != 0; }
  [[nodiscard]] constexpr bool is_zero() const { return *this == MacAddress{}; }
  static constexpr MacAddress broadcast() { return {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}; }
};

struct IpAddress {
  alignas(8) std::array<std::uint8_t, 16> bytes{};     // network order
  auto operator<=>(const IpAddress&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
  constexpr bool operator==(const IpAddress& other) const {
    const Words a = words(), b = other.words();
    return ((a[0] ^ b[0]) | (a[1] ^ b[1])) == 0;
  }

  /// `v4` in host order: 0x0a090001 is 10.9.0.1.
  static constexpr IpAddress from_v4(std::uint32_t v4) {
    const Words words = {0, kMapped | std::uint64_t{host_to_be32(v4)} << 32};
    return {std::bit_cast<std::array<std::uint8_t, 16>>(words)};
  }
  [[nodiscard]] constexpr bool is_v4() const {
    const Words w = words();
    return w[0] == 0 && (w[1] & 0xffffffffU) == kMapped;
  }
  /// Host order; meaningful when is_v4().
  [[nodiscard]] constexpr std::uint32_t v4() const {
    return be32_to_host(static_cast<std::uint32_t>(words()[1] >> 32));
  }
  /// :: or 0.0.0.0 (v4-mapped): "any".
  [[nodiscard]] constexpr bool is_any() const {
    const Words w = words();
    return w[0] == 0 && (w[1] == 0 || w[1] == kMapped);
  }
  /// 127.0.0.0/8 and ::1.
  [[nodiscard]] constexpr bool is_loopback() const {
    if (is_v4()) return v4() >> 24 == 127;
    const Words w = words();
    return w[0] == 0 && w[1] == std::uint64_t{1} << 56;
  }
  /// An IPv6 one of a single link (RFC 4291 §2.5.6).
  [[nodiscard]] constexpr bool is_link_local() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }
  [[nodiscard]] constexpr bool is_multicast() const { return is_v4() ? (v4() >> 28) == 0xe : bytes[0] == 0xff; }

 private:
  // The address as two words of memory; the second one's low half is 00 00 ff ff when it is v4-mapped.
  using Words = std::array<std::uint64_t, 2>;
  static constexpr std::uint64_t kMapped = 0xffff0000U;
  [[nodiscard]] constexpr Words words() const { return std::bit_cast<Words>(bytes); }
};

/// An address and a port; the port in host order.
struct Endpoint {
  IpAddress address;
  std::uint16_t port = 0;
  auto operator<=>(const Endpoint&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};

/// An address with its prefix length, counted in the family's own bits (24 for 10.9.0.1/24).
struct Prefix {
  IpAddress address;
  std::uint8_t length = 0;
  [[nodiscard]] constexpr bool contains(const IpAddress& a) const {
    if (a.is_v4() != address.is_v4()) return false;
    const unsigned bits = length + (address.is_v4() ? 96U : 0U);
    for (unsigned i = 0; i < bits; i++) {
      const unsigned shift = 7 - i % 8;
      if (((a.bytes[i / 8] ^ address.bytes[i / 8]) >> shift) & 1) return false;
    }
    return true;
  }
};

}  // namespace bypass
