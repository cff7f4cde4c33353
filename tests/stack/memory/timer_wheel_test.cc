#include "stack/timer_wheel.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "stack/memory/region.h"

namespace bypass {
namespace {

using namespace std::chrono_literals;

struct Entry {
  int before = 0;
  TimerNode node;
  Instant due = kNever;  // the model
  Instant fired{};
};
using Wheel = TimerWheel<Entry, &Entry::node>;

Instant at(Duration d) {
  return Instant{d};
}

std::size_t fire(Wheel& wheel, Instant now) {
  std::size_t count = 0;
  wheel.expire(now, [&](Entry& e) {
    e.fired = now;
    count++;
  });
  return count;
}

TEST(TimerWheel, Due_FiresThenAndNotBefore) {
  Wheel wheel;
  Entry e;
  wheel.schedule(e, at(40ms));
  EXPECT_EQ(wheel.next_deadline(), at(40ms));
  EXPECT_TRUE(e.node.scheduled());
  EXPECT_EQ(fire(wheel, at(40ms) - 1ns), 0U);
  EXPECT_EQ(fire(wheel, at(40ms)), 1U);
  EXPECT_FALSE(e.node.scheduled());
  EXPECT_EQ(wheel.next_deadline(), kNever);
}

TEST(TimerWheel, FarAway_FiresExactlyAfterManySteps) {
  for (Duration d : {Duration(1ns), Duration(65536ns), Duration(17ms), Duration(2s), Duration(5min), Duration(30h),
                     Duration(9000h), Duration(87600h)}) {
    Wheel wheel;
    Entry e;
    const Instant start = at(123456789s);
    fire(wheel, start);
    wheel.schedule(e, start + d);
    Instant now = start;
    while (now < start + d) {
      EXPECT_EQ(fire(wheel, now), 0U);
      ASSERT_GT(wheel.next_deadline(), now) << "no progress";
      ASSERT_LE(wheel.next_deadline(), start + d);
      now = wheel.next_deadline();
    }
    EXPECT_EQ(fire(wheel, now), 1U);
  }
}

TEST(TimerWheel, Cancelled_NeverFires) {
  Wheel wheel;
  Entry e, other;
  wheel.schedule(e, at(5ms));
  wheel.schedule(other, at(5ms));
  wheel.cancel(e);
  wheel.cancel(e);
  EXPECT_EQ(fire(wheel, at(1s)), 1U);
  EXPECT_EQ(e.fired, Instant{});
}

TEST(TimerWheel, ScheduledAgain_MovesEitherWay) {
  Wheel wheel;
  Entry e;
  wheel.schedule(e, at(5ms));
  wheel.schedule(e, at(50ms));
  EXPECT_EQ(fire(wheel, at(49ms)), 0U);
  wheel.schedule(e, at(49500us));
  EXPECT_EQ(wheel.next_deadline(), at(49500us));
  EXPECT_EQ(fire(wheel, at(49500us)), 1U);
}

TEST(TimerWheel, ScheduledInThePastByItsOwnHandler_FiresNextTime) {
  Wheel wheel;
  Entry e;
  wheel.schedule(e, at(1ms));
  int fired = 0;
  const auto again = [&](Entry& x) {
    fired++;
    wheel.schedule(x, at(1us));
  };
  wheel.expire(at(2ms), again);
  EXPECT_EQ(fired, 1);
  EXPECT_LE(wheel.next_deadline(), at(2ms));
  wheel.expire(at(2ms), again);
  EXPECT_EQ(fired, 2);
}

TEST(TimerWheel, HandlerCancelsAnotherDueOne_ItDoesNotFire) {
  Wheel wheel;
  Entry a, b;
  wheel.schedule(a, at(1ms));
  wheel.schedule(b, at(1ms));
  int fired = 0;
  wheel.expire(at(5ms), [&](Entry& e) {
    fired++;
    wheel.cancel(&e == &a ? b : a);
  });
  EXPECT_EQ(fired, 1);
}

TEST(TimerWheel, TimeStandsStillOrGoesBack_NothingHappens) {
  Wheel wheel;
  Entry e;
  fire(wheel, at(1s));
  wheel.schedule(e, at(1001ms));
  EXPECT_EQ(fire(wheel, at(500ms)), 0U);
  EXPECT_EQ(fire(wheel, at(1001ms)), 1U);
}

TEST(TimerWheel, RandomUse_MatchesTheModel) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    Wheel wheel;
    std::deque<Entry> entries(200);
    Instant now = at(Duration(static_cast<std::int64_t>(dice.spread(50))));
    for (int i = 0; i < 4000; i++) {
      Entry& e = entries[dice.below(entries.size())];
      if (dice.chance(60)) {
        const Duration ahead(static_cast<std::int64_t>(dice.spread(43)));
        e.due = dice.chance(5) ? now - ahead : now + ahead;
        wheel.schedule(e, e.due);
      } else if (dice.chance(30)) {
        e.due = kNever;
        wheel.cancel(e);
      } else {
        const bool jump = dice.chance(50) && wheel.next_deadline() != kNever;
        now = std::max(now, jump ? wheel.next_deadline() : now + Duration(static_cast<std::int64_t>(dice.spread(40))));
        wheel.expire(now, [&](Entry& x) {
          EXPECT_LE(x.due, now);
          x.due = kNever;
        });
        for (Entry& x : entries) ASSERT_TRUE(x.due > now) << "late";
        ASSERT_GT(wheel.next_deadline(), now);
      }
      Instant earliest = kNever;
      for (Entry& x : entries) {
        earliest = std::min(earliest, x.due);
        ASSERT_EQ(x.node.scheduled(), x.due != kNever);
      }
      ASSERT_LE(wheel.next_deadline(), earliest);
    }
  }
}

TEST(TimerWheel, ScrambledLinks_AreForgottenByClear) {
  Wheel wheel;
  std::vector<Entry> entries(50);
  for (std::size_t i = 0; i < entries.size(); i++) wheel.schedule(entries[i], at(Duration(1ms) * i));
  fire(wheel, at(10ms));
  wheel.clear();
  for (Entry& e : entries) {
    std::memset(static_cast<void*>(&e.node), 0xa5, sizeof e.node);
    e.node = TimerNode{};
    wheel.schedule(e, at(20ms));
  }
  EXPECT_EQ(fire(wheel, at(20ms)), entries.size());
}

}  // namespace
}  // namespace bypass
