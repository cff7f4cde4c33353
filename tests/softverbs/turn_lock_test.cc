// The adapter's lock: one holder at a time, and no thread sleeps for ever.
#include "softverbs/abi/adapter/turn_lock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace bypass::softverbs::test {
namespace {

TEST(TurnLock, IsOnesAtATime) {
  TurnLock lock;
  ASSERT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.reset();
  EXPECT_TRUE(lock.try_lock());
}

// Holders that give their processor away, so that the others come to sleep.
TEST(TurnLock, ManyThreads_LoseNothing) {
  constexpr int kThreads = 4, kTurns = 2'000;
  TurnLock lock;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; turn++) {
        lock.lock();
        const int before = count;
        if (turn % 64 == 0) std::this_thread::yield();
        count = before + 1;
        lock.unlock();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kTurns);
}

}  // namespace
}  // namespace bypass::softverbs::test
