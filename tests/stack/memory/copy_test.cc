#include "stack/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace bypass {
namespace {

// Lengths near whole pieces, at addresses of different alignment. The bytes arrive, and no other byte changes.
TEST(Copy, EveryLengthAboutAPiece_IsWhole) {
  constexpr std::size_t kMost = 5000, kAround = 64;
  std::vector<std::byte> from(kMost + kAround);
  for (std::size_t i = 0; i < from.size(); i++) from[i] = static_cast<std::byte>(i * 131 >> 3);
  for (const std::size_t bytes : {0U, 1U, 1023U, 1024U, 1025U, 2047U, 2048U, 2049U, 3072U, 5000U}) {
    for (const std::size_t at : {0U, 1U, 16U, 63U}) {
      std::vector<std::byte> to(kMost + 2 * kAround, std::byte{0xee});
      copy_bytes(to.data() + at, from.data() + kAround - at, bytes);
      EXPECT_TRUE(std::equal(from.data() + kAround - at, from.data() + kAround - at + bytes, to.data() + at)) << bytes;
      const auto untouched = [](std::byte b) { return b == std::byte{0xee}; };
      EXPECT_TRUE(std::all_of(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(at), untouched)) << bytes;
      EXPECT_TRUE(std::all_of(to.begin() + static_cast<std::ptrdiff_t>(at + bytes), to.end(), untouched)) << bytes;
    }
  }
}

}  // namespace
}  // namespace bypass
