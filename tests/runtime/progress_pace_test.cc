#include "runtime/progress/progress_pace.h"

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

struct Looks {
  int looks = 0, away = 0;  // in a second
  Duration longest{};       // that a frame may have waited: from a poll to the look that found the program away
};

// Progress::step() beside a program that polls for `polls` and then is away for `computes`, again and again, while
// frames come.
Looks look_for_a_second(Duration polls, Duration computes) {
  ProgressPace pace(10ms);
  Looks seen;
  for (Duration now = 0ms; now < 1s;) {
    const Duration turn = now % (polls + computes);
    const Duration quiet = std::max(turn - polls, Duration{});
    const Duration left = pace.patience(10ms, true);
    seen.looks++;
    if (quiet < left) {
      pace.on_present();
      now += left - quiet;
    } else {
      pace.on_away();
      seen.away++;
      seen.longest = std::max(seen.longest, quiet);
      now += polls + computes - turn;  // until it is back
    }
  }
  return seen;
}

TEST(ProgressPace, FrameWaitsForATickAtMost_ForFewLooks) {
  const Looks always = look_for_a_second(1s, 0ms);
  EXPECT_EQ(always.looks, 100) << "a tick apart";
  EXPECT_EQ(always.away, 0);
  const Looks long_turns = look_for_a_second(5ms, 45ms);
  EXPECT_EQ(long_turns.away, 20) << "each turn";
  EXPECT_LE(long_turns.longest, 10ms);
  const Looks short_turns = look_for_a_second(30ms, 3ms);
  EXPECT_LE(short_turns.longest, 3ms);
  EXPECT_LE(short_turns.looks, 300);
}

}  // namespace
}  // namespace bypass::runtime
