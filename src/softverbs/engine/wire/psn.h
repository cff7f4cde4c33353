// Packet sequence numbers: 24 bits, ordered within half of their circle (InfiniBand specification, 9.7.1).
#pragma once

#include <cstdint>

namespace bypass::rdma {

struct Psn {
  std::uint32_t v = 0;
  constexpr bool operator==(const Psn&) const = default;
};

inline constexpr std::uint32_t kPsnMask = 0xffffff;

/// How far `a` lies after `b`; negative if it lies before `b`.
constexpr std::int32_t operator-(Psn a, Psn b) {
  return static_cast<std::int32_t>((a.v - b.v) << 8) >> 8;
}
constexpr Psn operator+(Psn a, std::uint32_t n) {
  return {(a.v + n) & kPsnMask};
}
constexpr bool before(Psn a, Psn b) {
  return a - b < 0;
}

}  // namespace bypass::rdma
