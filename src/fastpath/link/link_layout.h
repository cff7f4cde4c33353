// LinkLayout: what lies where in a link's memory, which the peer writes: LinkBlock, one credit block for each lane, and
// rings.
//
// A lane's number says which ring is its own. There are four sizes, so that few connections have large rings and many
// still have one. The memory has eight parts: each of the three larger sizes has one, and the smallest size has five.
// The largest link has 10,000 rings of the smallest size.
// Tests: tests/fastpath/peer_links_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "fastpath/framed/control.h"
#include "fastpath/link/link.h"

namespace bypass::fastpath {

class LinkLayout {
 public:
  static constexpr std::size_t kSizes = 4;
  /// The largest ring holds about 100 µs of a fast stream: what the two ends have under way in pieces of 64 to 128 KiB,
  /// and what one end sends while the other is off its processor.
  static constexpr std::array<std::uint8_t, kSizes> kRingLog2{20, 18, 15, 12};
  /// Sizes of a link's memory in bytes: powers of two.
  static constexpr std::uint32_t kLeast = 1U << 21, kMost = 1U << 26;
  static_assert(kLeast / 8 >= 1U << kRingLog2[1], "the least memory has a ring of each size but the largest");

  explicit LinkLayout(std::uint32_t bytes) {
    std::uint32_t end = bytes, part = 0;
    for (std::size_t size = 0; size < kSizes; size++) {
      part += size + 1 < kSizes ? bytes / 8 : bytes / 8 * 5;
      count_[size] = part >> kRingLog2[size];
      if (count_[size] == 0) continue;  // the next size gets this part, too
      begin_[size] = end -= part;
      part = 0;
    }
    // The blocks lie before the smallest rings.
    const std::uint32_t blocks = kCredits + lanes() * kCreditBytes, ring = 1U << kRingLog2.back();
    const std::uint32_t less = (blocks + ring - 1) / ring;
    count_.back() -= less;
    begin_.back() += less * ring;
  }

  [[nodiscard]] std::uint32_t lanes() const { return first(kSizes); }
  /// The rings of one size, the largest size first: [first, first + count).
  [[nodiscard]] std::uint32_t first(std::size_t size) const {
    return std::accumulate(count_.begin(), count_.begin() + static_cast<std::ptrdiff_t>(size), 0U);
  }
  [[nodiscard]] std::uint32_t count(std::size_t size) const { return count_[size]; }
  [[nodiscard]] std::size_t size_of(std::uint32_t lane) const {
    std::size_t size = 0;
    while (lane >= first(size + 1)) size++;
    return size;
  }

  /// `lane` < lanes().
  [[nodiscard]] LaneAddress address(std::uint32_t lane) const {
    const std::size_t size = size_of(lane);
    LaneAddress at;
    at.lane = static_cast<std::uint16_t>(lane);
    at.ring_log2 = kRingLog2[size];
    at.credit = kCredits + std::uint64_t{lane} * kCreditBytes;
    at.ring = begin_[size] + (std::uint64_t{lane - first(size)} << kRingLog2[size]);
    return at;
  }

 private:
  static constexpr std::uint32_t kCredits = sizeof(LinkBlock), kCreditBytes = 64;  // a cache line each

  std::array<std::uint32_t, kSizes> count_{}, begin_{};  // number of rings, and the offset of the first one
};

}  // namespace bypass::fastpath
