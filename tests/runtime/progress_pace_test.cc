#include "runtime/progress_pace.h"

#include <gtest/gtest.h>

namespace bypass::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNow{100s};

TEST(ProgressPace, FramesCome_ProgramIsLeftAMillisecond) {
  EXPECT_EQ(patience(40ms, is_active(kNow, kNow - 3us)), 1ms);
  EXPECT_EQ(patience(40ms, is_active(kNow, kNow - 999ms)), 1ms);
}

TEST(ProgressPace, NoFrameForASecond_ProgramIsLeftThePause) {
  EXPECT_EQ(patience(40ms, is_active(kNow, kNow - 1s)), 40ms);
  EXPECT_EQ(patience(10ms, is_active(kNow, Instant{})), 10ms) << "no frame ever";
}

TEST(ProgressPace, ShorterPause_StaysSo) {
  EXPECT_EQ(patience(500us, true), 500us);
}

}  // namespace
}  // namespace bypass::runtime
