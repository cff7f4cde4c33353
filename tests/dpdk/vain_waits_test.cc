// A driver's waits for a card that will not answer.
#include "backends/dpdk/card/vain_waits.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "backends/dpdk/eal/libc.h"
#include "backends/plain_host.h"

namespace bypass::dpdk {
namespace {

constexpr const char* kCard = "0000:3b:00.0";
constexpr Instant kPast{};

class VainWaitsTest : public ::testing::Test {
 protected:
  VainWaitsTest() {
    const char* missing = nullptr;
    EXPECT_TRUE(bind_libc(&PlainHost::host(), &missing)) << missing;
    std::string pattern = std::filesystem::temp_directory_path() / "bypass-waits-XXXXXX";
    root_ = mkdtemp(pattern.data());
    std::filesystem::create_directories(devices() / kCard);
  }
  ~VainWaitsTest() override { std::filesystem::remove_all(root_); }
  [[nodiscard]] std::filesystem::path devices() const { return root_ / "sys/bus/pci/devices"; }

  std::filesystem::path root_;
};

TEST_F(VainWaitsTest, OutsideOfADriverNothingIsCut) {
  EXPECT_FALSE(waits_in_vain());
  const VainWaits none("", kPast, root_);
  EXPECT_FALSE(waits_in_vain()) << "no card's";
}

TEST_F(VainWaitsTest, ACardThatIsThereIsWaitedFor) {
  const VainWaits waits(kCard, kNever, root_);
  EXPECT_FALSE(waits_in_vain());
  EXPECT_FALSE(waits.was_silent());
}

TEST_F(VainWaitsTest, ACardThatHasGoneIsNot) {
  const VainWaits waits(kCard, kNever, root_);
  std::filesystem::remove_all(devices() / kCard);
  EXPECT_TRUE(waits_in_vain());
  EXPECT_FALSE(waits.was_silent());
}

TEST_F(VainWaitsTest, AfterChrootNoCardHasGone) {
  const VainWaits waits(kCard, kNever, root_);
  std::filesystem::remove_all(root_ / "sys");
  EXPECT_FALSE(waits_in_vain());
}

TEST_F(VainWaitsTest, ACardThatIsSilentForTooLongIsNot) {
  const VainWaits waits(kCard, kPast, root_);
  EXPECT_TRUE(waits_in_vain());
  EXPECT_TRUE(waits.was_silent());
}

// virtio's driver waits for its control queue without end.
TEST_F(VainWaitsTest, ADriverThatGoesOnWaitingNeverStops) {
  const VainWaits waits(kCard, kPast, root_);
  for (int i = 0; i < 100'000; i++) ASSERT_TRUE(waits_in_vain());
  EXPECT_FALSE(waits_without_end());
  for (int i = 0; i < 200'000; i++) ASSERT_TRUE(waits_in_vain());
  EXPECT_TRUE(waits_without_end());
}

TEST_F(VainWaitsTest, TheCallAroundIsBoundAgainAfterwards) {
  const VainWaits outer(kCard, kPast, root_);
  { const VainWaits inner(kCard, kNever, root_); }
  EXPECT_TRUE(waits_in_vain());
}

}  // namespace
}  // namespace bypass::dpdk
