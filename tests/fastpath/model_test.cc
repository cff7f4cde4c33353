// The lane protocol, explored exhaustively: see model.h for the world and checker.h for what is reported.
//
// BYPASS_TEST_LONG=1 explores larger bounds, for minutes.
#include "fastpath/model.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "long_form.h"

namespace bypass::fastpath::test {
namespace {

constexpr std::size_t kMostStates = 40'000'000;

using bypass::test::long_form;

/// A sanitizer build's short form: the release build explores the same states ten times as fast.
bool is_left_to_release() {
  return bypass::test::is_sanitized() && !long_form();
}

/// One byte is far behind.
struct SoonAhead : LaneRules {
  static constexpr std::uint64_t kAhead = 1;
};

template <typename Rules = LaneRules>
Outcome explore(const Bounds& bounds, std::size_t most = kMostStates) {
  return Checker<Model<Rules>>(most).explore(Model<Rules>(bounds));
}

template <typename Rules = LaneRules>
void expect_good(const Bounds& bounds) {
  const Outcome outcome = explore<Rules>(bounds);
  EXPECT_EQ(outcome.violated, nullptr) << outcome.violated << ", after: " << outcome.way;
  EXPECT_EQ(outcome.stuck, 0U) << "after: " << outcome.way;
  EXPECT_TRUE(outcome.complete);
  EXPECT_GT(outcome.endings, 0U);
  std::printf("%zu states, %zu endings\n", outcome.states, outcome.endings);
}

// --- The protocol as it is

TEST(LaneModel, OneDirection_LinkDiesAtAnyStep) {
  expect_good({.bytes = {2, 0}});
}
TEST(LaneModel, OneDirection_RingOfOneByte_WaitsAndIsWoken) {
  expect_good({.bytes = {2, 0}, .ring_log2 = 0});
}
TEST(LaneModel, OneDirection_TcpWindowOfOneByte_WaitsAndIsWoken) {
  expect_good({.bytes = {2, 0}, .tcp_window = 1});
}
TEST(LaneModel, OneDirection_FewMessageCredits_WaitsAndIsWoken) {
  expect_good({.bytes = {2, 0}, .window = 2, .reserve = 1});
}
TEST(LaneModel, OneDirection_MessagesAfterTheFinalCount) {
  expect_good({.bytes = {2, 0}, .late_messages = true});
}
TEST(LaneModel, BothDirectionsShareTheLink) {
  expect_good({.bytes = {1, 1}});
}
TEST(LaneModel, EndWrittenApart) {
  expect_good({.bytes = {1, 0}, .fin_apart = true});
}
TEST(LaneModel, LittleWritesGather) {
  expect_good({.bytes = {2, 0}, .gathers = true});
  expect_good({.bytes = {1, 0}, .fin_apart = true, .gathers = true});
}
TEST(LaneModel, WritesOfOneWhoIsFarAheadGather) {
  if (is_left_to_release()) GTEST_SKIP() << "the release build explores it";
  expect_good<SoonAhead>({.bytes = {2, 0}, .gathers_ahead = true});
  expect_good<SoonAhead>({.bytes = {2, 0}, .ring_log2 = 0, .gathers_ahead = true});
  expect_good<SoonAhead>({.bytes = {1, 0}, .fin_apart = true, .gathers_ahead = true});
  expect_good<SoonAhead>({.bytes = {2, 0}, .may_leave = true, .gathers_ahead = true});
}
TEST(LaneModel, SecondLinkAfterTheFirst) {
  expect_good({.bytes = {1, 0}, .links = 2});
}
TEST(LaneModel, LeftAtAnyStep) {
  if (is_left_to_release()) GTEST_SKIP() << "the release build explores it";
  expect_good({.bytes = {2, 0}, .may_leave = true});
}
TEST(LaneModel, LeftAndOpenedAgain) {
  expect_good({.bytes = {0, 0}, .links = 2, .may_leave = true});
  expect_good({.bytes = {1, 0}, .links = 2, .may_die = false, .may_leave = true});
}
TEST(LaneModel, AbortedAtAnyStep) {
  expect_good({.bytes = {1, 0}, .may_abort = true});
}
TEST(LaneModel, DeviceSaysLateThatItIsDone) {
  if (is_left_to_release()) GTEST_SKIP() << "the release build explores it";
  expect_good({.bytes = {2, 0}, .late_devices = true});
  expect_good({.bytes = {1, 0}, .may_leave = true, .late_devices = true});
  expect_good({.bytes = {1, 0}, .may_abort = true, .late_devices = true});
}

// --- A lane's place: nothing comes for who has given it away, and each is given away at last. (Where a connection is
// reset between an offer and its answer, neither end can say so: PeerLinks::sweep_ghosts.)

TEST(LaneModel, Places_Ended_LinkDiesAtAnyStep) {
  expect_good({.bytes = {1, 0}, .places = true});
}
TEST(LaneModel, Places_Aborted_LinkDiesAtAnyStep) {
  expect_good({.bytes = {0, 0}, .may_abort = true, .places = true});
}
TEST(LaneModel, Places_Aborted_EndWrittenApart) {
  expect_good({.bytes = {1, 0}, .may_die = false, .fin_apart = true, .may_abort = true, .places = true});
}
TEST(LaneModel, Places_LeftAndAborted) {
  expect_good({.bytes = {1, 0}, .may_die = false, .may_leave = true, .may_abort = true, .places = true});
}
TEST(LaneModel, Places_DeviceSaysLateThatItIsDone) {
  expect_good({.bytes = {1, 0}, .may_die = false, .may_abort = true, .late_devices = true, .places = true});
}

// --- Larger bounds

class LongLaneModel : public ::testing::TestWithParam<Bounds> {};

TEST_P(LongLaneModel, HoldsToo) {
  if (!long_form()) GTEST_SKIP() << "BYPASS_TEST_LONG=1 runs it";
  expect_good(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Bounds, LongLaneModel,
                         ::testing::Values(Bounds{.bytes = {3, 0}}, Bounds{.bytes = {3, 0}, .ring_log2 = 0},
                                           Bounds{.bytes = {2, 0}, .fin_apart = true, .gathers = true},
                                           Bounds{.bytes = {2, 1}}, Bounds{.bytes = {2, 0}, .links = 2},
                                           Bounds{.bytes = {2, 0}, .links = 2, .may_leave = true},
                                           Bounds{.bytes = {1, 1}, .links = 2},
                                           Bounds{.bytes = {1, 1}, .may_leave = true},
                                           Bounds{.bytes = {1, 1}, .may_abort = true},
                                           Bounds{.bytes = {1, 1}, .may_leave = true, .late_devices = true},
                                           Bounds{.bytes = {1, 0}, .links = 2, .may_leave = true, .late_devices = true},
                                           Bounds{.bytes = {1, 1}, .may_abort = true, .late_devices = true},
                                           Bounds{.bytes = {1, 0}, .may_abort = true, .places = true},
                                           Bounds{.bytes = {1, 1}, .may_die = false, .may_abort = true, .places = true},
                                           Bounds{.bytes = {2, 1},
                                                  .may_die = false,
                                                  .may_leave = true,
                                                  .may_abort = true,
                                                  .late_devices = true,
                                                  .places = true},
                                           Bounds{.bytes = {1, 0}, .links = 2, .may_leave = true, .places = true}));

TEST(LongLaneModelAhead, HoldsToo) {
  if (!long_form()) GTEST_SKIP() << "BYPASS_TEST_LONG=1 runs it";
  expect_good<SoonAhead>({.bytes = {3, 0}, .gathers_ahead = true});
  expect_good<SoonAhead>({.bytes = {2, 0}, .fin_apart = true, .gathers_ahead = true});
  expect_good<SoonAhead>({.bytes = {1, 1}, .links = 2, .gathers_ahead = true});
}

// --- Rules left out: each is noticed

/// A world that goes wrong, or from which there is no way to the end.
template <typename Rules>
void expect_caught(const Bounds& bounds) {
  const Outcome outcome = explore<Rules>(bounds);
  EXPECT_TRUE(outcome.violated != nullptr || outcome.stuck != 0) << "in " << outcome.states << " states";
  std::printf("%s (%zu stuck of %zu), after: %s\n",
              outcome.violated != nullptr ? outcome.violated : "no way to the end", outcome.stuck, outcome.states,
              outcome.way.c_str());
}

struct AbsoluteCount : LaneRules {
  static constexpr bool kCountIsOfTheLane = false;
};
struct ForeignStateIgnored : LaneRules {
  static constexpr bool kForeignStateEndsLink = false;
};
struct LateMessagesCount : LaneRules {
  static constexpr bool kFinalCountIsFrozen = false;
};
struct SilentlyBlocked : LaneRules {
  static constexpr bool kSaysBlocked = false;
};
struct FinSentOnce : LaneRules {
  static constexpr bool kFinIsRepeated = false;
};
struct ForgetsWhatIsSent : LaneRules {
  static constexpr bool kKeepsUntilPlaced = false;
};
struct TcpBeforeRing : LaneRules {
  static constexpr bool kRingBeforeTcp = false;
};

struct EndsInSilence : LaneRules {
  static constexpr bool kBothSayTheirEnd = false;
};
struct ResetsBehindTheEnd : LaneRules {
  static constexpr bool kNothingBehindTheEnd = false;
};
struct TakesThePeersWord : LaneRules {
  static constexpr bool kWaitsForDevice = false;
};

TEST(LaneMutation, CountSinceTheStreamBegan_IsCaught) {
  expect_caught<AbsoluteCount>({.bytes = {2, 0}});
}
TEST(LaneMutation, ForeignStateIgnored_IsCaught) {
  expect_caught<ForeignStateIgnored>({.bytes = {2, 0}});
}
TEST(LaneMutation, MessagesCountAfterTheFinalCount_IsCaught) {
  expect_caught<LateMessagesCount>({.bytes = {2, 0}, .late_messages = true});
}
TEST(LaneMutation, WriterThatSaysNotThatItWaits_IsCaught) {
  expect_caught<SilentlyBlocked>({.bytes = {2, 0}, .ring_log2 = 0, .may_die = false});
}
TEST(LaneMutation, FinNotRepeated_IsCaught) {
  expect_caught<FinSentOnce>({.bytes = {1, 0}});
}
TEST(LaneMutation, BytesForgottenWhenSent_IsCaught) {
  expect_caught<ForgetsWhatIsSent>({.bytes = {2, 0}});
}
TEST(LaneMutation, PeersWordFreesWhatTheDeviceMaySend_IsCaught) {
  expect_caught<TakesThePeersWord>({.bytes = {1, 0}, .late_devices = true});
}
TEST(LaneMutation, TcpReadBeforeTheRing_IsCaught) {
  expect_caught<TcpBeforeRing>({.bytes = {2, 0}});
}
TEST(LaneMutation, DirectionThatNeverCutEndsInSilence_IsCaught) {
  expect_caught<EndsInSilence>({.bytes = {1, 0}, .may_die = false, .may_abort = true, .places = true});
}
TEST(LaneMutation, ResetBehindTheEnd_IsCaught) {
  expect_caught<ResetsBehindTheEnd>({.bytes = {1, 0}, .may_die = false, .may_abort = true, .places = true});
}

}  // namespace
}  // namespace bypass::fastpath::test
