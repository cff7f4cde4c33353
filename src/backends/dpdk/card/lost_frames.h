// LostFrames: what a card says that it has dropped, added up over its openings.
#pragma once

#include <cstdint>

namespace bypass::dpdk {

class LostFrames {
 public:
  /// `count` as the card says it now. Returns how many more are lost. A card counts anew when it is opened again. A
  /// register of a card that has gone reads as ones: no card loses so many frames between two looks.
  std::uint64_t add(std::uint64_t count) {
    constexpr std::uint64_t kOnes = UINT32_MAX;
    const std::uint64_t more = count >= counted_ ? count - counted_ : count;
    if (more >= kOnes) return 0;
    counted_ = count;
    return more;
  }

 private:
  std::uint64_t counted_ = 0;  // of the device that is open
};

}  // namespace bypass::dpdk
