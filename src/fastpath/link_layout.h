// LinkLayout: what lies where in a link's memory, which the peer writes: LinkBlock, a credit block a lane, and rings.
//
// A lane's number says which ring is its own. There are three sizes, so that few connections have large rings and many
// still have one: of eight parts of the memory two are large rings, one middle and five small ones, of which the
// largest link has 10,000.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "fastpath/control.h"
#include "fastpath/link.h"

namespace bypass::fastpath {

class LinkLayout {
 public:
  static constexpr std::size_t kSizes = 3;
  /// The largest holds several of the pieces that its two ends work in (64 to 128 KiB), or they take turns.
  static constexpr std::array<std::uint8_t, kSizes> kRingLog2{19, 15, 12};
  /// Of a link's memory: powers of two.
  static constexpr std::uint32_t kLeast = 1U << 21, kMost = 1U << 26;
  static_assert(kLeast / 4 >= 1U << kRingLog2[0], "the least memory has a ring of each size");

  explicit LinkLayout(std::uint32_t bytes) : bytes_(bytes) {
    count_[0] = (bytes / 4) >> kRingLog2[0];
    count_[1] = (bytes / 8) >> kRingLog2[1];
    count_[2] = (bytes / 8 * 5) >> kRingLog2[2];
    // In front of the small rings lie the blocks.
    count_[2] -= (kCredits + lanes() * kCreditBytes + small_ring() - 1) / small_ring();
  }

  [[nodiscard]] std::uint32_t lanes() const { return count_[0] + count_[1] + count_[2]; }
  /// Of one ring size, the largest first: [first, first + count).
  [[nodiscard]] std::uint32_t first(std::size_t size) const {
    return size == 0 ? 0 : count_[0] + (size == 2 ? count_[1] : 0);
  }
  [[nodiscard]] std::uint32_t count(std::size_t size) const { return count_[size]; }
  [[nodiscard]] std::size_t size_of(std::uint32_t lane) const {
    return lane < first(1) ? 0 : (lane < first(2) ? 1 : 2);
  }

  [[nodiscard]] LaneAddress address(std::uint32_t lane) const {
    const std::size_t size = size_of(lane);
    const std::uint64_t place = std::uint64_t{lane - first(size)} << kRingLog2[size];
    LaneAddress at;
    at.lane = static_cast<std::uint16_t>(lane);
    at.ring_log2 = kRingLog2[size];
    at.credit = kCredits + std::uint64_t{lane} * kCreditBytes;
    if (size == 0) at.ring = bytes_ / 4 * 3 + place;
    if (size == 1) at.ring = bytes_ / 8 * 5 + place;
    if (size == 2) at.ring = bytes_ / 8 * 5 - (std::uint64_t{count_[2]} << kRingLog2[2]) + place;
    return at;
  }

 private:
  static constexpr std::uint32_t kCredits = sizeof(LinkBlock), kCreditBytes = 64;  // no two in one cache line
  [[nodiscard]] static constexpr std::uint32_t small_ring() { return 1U << kRingLog2[2]; }

  std::uint32_t bytes_;
  std::array<std::uint32_t, kSizes> count_{};
};

}  // namespace bypass::fastpath
