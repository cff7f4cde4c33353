#include "socket/wait/spin_habit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace bypass::socket {
namespace {

/// How many waits sleep at once until one spins again.
int asleep_in_a_row(SpinHabit& habit, bool in_time = false) {
  int n = 0;
  for (; !habit.spins(); n++) habit.on_slept_at_once(in_time);
  return n;
}

TEST(SpinHabit, SpinsAtFirst) {
  EXPECT_TRUE(SpinHabit().spins());
}

TEST(SpinHabit, EachMissSleepsTwiceAsOften) {
  SpinHabit habit;
  int expected = 1;
  for (int i = 0; i < 10; i++) {
    habit.on_missed();
    EXPECT_EQ(asleep_in_a_row(habit), expected);
    expected = std::min(2 * expected, SpinHabit::kMostAsleep);
  }
  EXPECT_EQ(expected, SpinHabit::kMostAsleep);
}

TEST(SpinHabit, WhatSpinningWouldHaveCaughtBringsItBackSoon) {
  SpinHabit habit;
  for (int i = 0; i < 10; i++) habit.on_missed();
  EXPECT_EQ(asleep_in_a_row(habit, true), 7);
}

TEST(SpinHabit, ACaughtWaitLeavesItSpinning) {
  SpinHabit habit;
  for (int i = 0; i < 10; i++) habit.on_missed();
  asleep_in_a_row(habit);
  habit.on_caught();
  EXPECT_TRUE(habit.spins());
}

// One wait in three finds its bytes by spinning, as where programs take turns on a processor. Then few of the waits
// spin.
TEST(SpinHabit, MostWaitsSleepWhereMostAreMissed) {
  SpinHabit habit;
  int spun = 0, slept = 0;
  std::minstd_rand random(1);
  for (int i = 0; i < 3000; i++) {
    const bool in_time = random() % 3 == 0;
    if (!habit.spins()) {
      slept++;
      habit.on_slept_at_once(in_time);
      continue;
    }
    spun++;
    in_time ? habit.on_caught() : habit.on_missed();
  }
  EXPECT_GT(slept, 3 * spun);
}

TEST(SpinHabit, AllWaitsSpinOnceAllAreCaught) {
  SpinHabit habit;
  for (int i = 0; i < 10; i++) habit.on_missed();
  asleep_in_a_row(habit);
  for (int i = 0; i < 10; i++) habit.on_caught();
  habit.on_missed();
  EXPECT_EQ(asleep_in_a_row(habit), 1);
}

}  // namespace
}  // namespace bypass::socket
