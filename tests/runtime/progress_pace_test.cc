#include "runtime/progress_pace.h"

#include <gtest/gtest.h>

namespace bypass::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Instant kNow{100s};

TEST(ProgressPace, Active_IsASecondAfterAFrame) {
  EXPECT_TRUE(is_active(kNow, kNow - 999ms));
  EXPECT_FALSE(is_active(kNow, kNow - 1s));
  EXPECT_FALSE(is_active(kNow, Instant{})) << "no frame ever";
}

TEST(ProgressPace, ProgramThatPolls_IsLookedAtOnceATick) {
  ProgressPace pace(10ms);
  for (int i = 0; i < 5; i++) pace.on_present();
  EXPECT_EQ(pace.patience(40ms, true), 10ms);
}

TEST(ProgressPace, ProgramFoundAway_IsLeftAMillisecond) {
  ProgressPace pace(10ms);
  pace.on_away();
  EXPECT_EQ(pace.patience(10ms, true), 1ms);
  EXPECT_EQ(pace.patience(10ms, false), 10ms) << "no frame for a second";
}

TEST(ProgressPace, ProgramThatComesBack_IsLeftLongerByAndBy) {
  ProgressPace pace(10ms);
  pace.on_away();
  for (const Duration left : {2ms, 4ms, 8ms, 10ms, 10ms}) {
    pace.on_present();
    EXPECT_EQ(pace.patience(40ms, true), left);
  }
}

TEST(ProgressPace, ShorterPauseAndShorterTick_StaySo) {
  ProgressPace pace(10ms);
  EXPECT_EQ(pace.patience(500us, true), 500us);
  ProgressPace quick(500us);
  quick.on_away();
  EXPECT_EQ(quick.patience(40ms, true), 500us);
}

}  // namespace
}  // namespace bypass::runtime
