// Which system call instructions a jump can replace, and what moves with it.
#include "preload/raw/site.h"

#include <cstdint>
#include <vector>

namespace bypass::preload::raw {
namespace {

using Code = std::vector<std::uint8_t>;

std::vector<std::uint8_t> bytes_of(const Moved& moved) {
  return {moved.bytes.begin(), moved.bytes.begin() + static_cast<std::ptrdiff_t>(moved.count)};
}

TEST(Site, CompareAfterTheCall_Moves) {
  // mov %rbx,%rdi; syscall; cmp $-4095,%rax; jbe
  const Code code{0x48, 0x89, 0xdf, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76, 0x15};
  std::vector<Site> sites;
  ASSERT_TRUE(find_sites(code, sites));
  ASSERT_EQ(sites.size(), 1U);
  EXPECT_EQ(sites[0].at, code.data() + 3);
  EXPECT_EQ(sites[0].room, 8U);
  EXPECT_EQ(sites[0].before.count, 0U);
  EXPECT_EQ(bytes_of(sites[0].after), (Code{0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff}));
  EXPECT_EQ(sites[0].back, code.data() + 11);
}

TEST(Site, NumberBeforeTheCall_Moves) {
  // mov $232,%eax; syscall; ret
  const Code code{0x90, 0xb8, 0xe8, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xc3};
  std::vector<Site> sites;
  ASSERT_TRUE(find_sites(code, sites));
  ASSERT_EQ(sites.size(), 1U);
  EXPECT_EQ(sites[0].at, code.data() + 1);
  EXPECT_EQ(sites[0].room, 5U);
  EXPECT_EQ(bytes_of(sites[0].before), (Code{0xb8, 0xe8, 0x00, 0x00, 0x00}));
  EXPECT_EQ(sites[0].back, code.data() + 8);
}

TEST(Site, PushAndCompareOfVfork_Move) {
  // pop %r12; syscall; push %r12; cmp $-4095,%rax
  const Code code{0x41, 0x5c, 0x0f, 0x05, 0x41, 0x54, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76};
  std::vector<Site> sites;
  ASSERT_TRUE(find_sites(code, sites));
  ASSERT_EQ(sites.size(), 1U);
  EXPECT_EQ(sites[0].room, 10U);
  EXPECT_EQ(sites[0].back, code.data() + 12);
}

TEST(Site, ReturnBeforePadding_MovesAndEnds) {
  const Code code{0x90, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x05, 0xc3, 0xcc, 0xcc, 0xcc};
  std::vector<Site> sites;
  ASSERT_TRUE(find_sites(code, sites));
  ASSERT_EQ(sites.size(), 1U);
  EXPECT_EQ(sites[0].room, 5U);
  EXPECT_EQ(sites[0].back, nullptr);
}

TEST(Site, JumpAfterTheCall_IsNotUnderstood) {
  // it depends on where it is
  const Code code{0x90, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x05, 0x76, 0x10, 0x90, 0x90};
  std::vector<Site> sites;
  EXPECT_FALSE(find_sites(code, sites));
}

TEST(Site, CodeThatEndsWithTheCall_IsNotUnderstood) {
  const Code code{0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x05};
  std::vector<Site> sites;
  EXPECT_FALSE(find_sites(code, sites));
}

TEST(Site, CodeWithoutACall_HasNone) {
  const Code code{0x0f, 0x04, 0x05, 0x0f};
  std::vector<Site> sites;
  EXPECT_TRUE(find_sites(code, sites));
  EXPECT_TRUE(sites.empty());
}

}  // namespace
}  // namespace bypass::preload::raw
