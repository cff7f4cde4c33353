// Whether a card's interrupt counts as proven, and how long a sleeper may rely on it.
#include "backends/dpdk/card/interrupt_trust.h"

#include <gtest/gtest.h>

namespace bypass::dpdk {
namespace {

using std::chrono::milliseconds;
using State = InterruptTrust::State;

void miss(InterruptTrust& trust, unsigned times) {
  for (unsigned i = 0; i < times; i++) trust.on_missed();
}

TEST(InterruptTrust, IsLookedAfterMoreAndMoreSeldomUntilAnythingComes) {
  InterruptTrust trust(true);
  Duration before = trust.patience();
  EXPECT_EQ(before, InterruptTrust::kShortest);
  for (int i = 0; i < 20; i++) {
    trust.on_idle();
    EXPECT_GE(trust.patience(), before);
    before = trust.patience();
  }
  EXPECT_EQ(before, InterruptTrust::kLongestUnproven);
  EXPECT_EQ(trust.state(), State::kUnproven);
}

TEST(InterruptTrust, OneEventProvesIt) {
  InterruptTrust trust(true);
  trust.on_event();
  EXPECT_EQ(trust.state(), State::kProven);
  EXPECT_EQ(trust.patience(), InterruptTrust::kLongestProven);
}

TEST(InterruptTrust, FramesWithoutEventsMarkItDead) {
  InterruptTrust trust(true);
  miss(trust, InterruptTrust::kMissesToBeDead - 1);
  EXPECT_EQ(trust.state(), State::kUnproven);
  EXPECT_EQ(trust.patience(), InterruptTrust::kShortest) << "the first one makes the sleeps short";
  miss(trust, 1);
  EXPECT_EQ(trust.state(), State::kDead);
}

TEST(InterruptTrust, OneThatWasProvenMayDieLater) {
  InterruptTrust trust(true);
  trust.on_event();
  miss(trust, InterruptTrust::kMissesToBeDead);
  EXPECT_EQ(trust.state(), State::kDead);
}

TEST(InterruptTrust, ALateEventIsNoMiss) {
  InterruptTrust trust(true);
  for (int i = 0; i < 100; i++) {
    miss(trust, InterruptTrust::kMissesToBeDead - 1);
    trust.on_event();
  }
  EXPECT_EQ(trust.state(), State::kProven);
}

TEST(InterruptTrust, ADeadOnesSleepsStayShort) {
  InterruptTrust trust(true);
  miss(trust, InterruptTrust::kMissesToBeDead);
  for (int i = 0; i < 20; i++) trust.on_idle();
  EXPECT_EQ(trust.patience(), InterruptTrust::kLongest);
  trust.on_missed();
  EXPECT_EQ(trust.patience(), InterruptTrust::kShortest);
}

TEST(InterruptTrust, ManyEventsInARowReviveIt) {
  InterruptTrust trust(true);
  miss(trust, InterruptTrust::kMissesToBeDead);
  for (unsigned i = 1; i < InterruptTrust::kEventsToRevive; i++) trust.on_event();
  EXPECT_EQ(trust.state(), State::kDead);
  trust.on_event();
  EXPECT_EQ(trust.state(), State::kProven);
}

TEST(InterruptTrust, WithoutAnInterruptItIsDeadForGood) {
  InterruptTrust trust(false);
  for (unsigned i = 0; i < 2 * InterruptTrust::kEventsToRevive; i++) trust.on_event();
  EXPECT_EQ(trust.state(), State::kDead);
  for (int i = 0; i < 20; i++) trust.on_idle();
  EXPECT_EQ(trust.patience(), InterruptTrust::kLongest);
}

}  // namespace
}  // namespace bypass::dpdk
