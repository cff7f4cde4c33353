// The lock and its deferred work between threads. (Also runs under TSan.)
#include <atomic>
#include <thread>
#include <vector>

#include "family/fixture.h"

namespace bypass::socket {
namespace {

TEST(LockThreads, Many_ExcludeEachOther) {
  Household h;
  long count = 0;
  constexpr int kThreads = 4, kRounds = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; i++) {
        while (i % 2 == 0 ? !h.lock.try_lock() : !h.lock.lock()) {
        }
        count++;
        h.lock.unlock();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(count, long{kThreads} * kRounds);
}

TEST(LockThreads, EverythingDeferred_IsDoneOnceUnderTheLock) {
  Household h;
  std::vector<int> done(3000, 0);
  h.lock.set_handlers({&done, nullptr, [](void* self, const Deferred& work) {
                         (*static_cast<std::vector<int>*>(self))[work.operation]++;
                       }});
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 3; t++) {
    threads.emplace_back([&h, t] {
      for (std::uint32_t i = 0; i < 1000; i++) {
        while (!h.lock.defer({.operation = t * 1000 + i})) {
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(h.lock.lock());
  h.lock.unlock();
  EXPECT_EQ(done, std::vector<int>(3000, 1));
}

}  // namespace
}  // namespace bypass::socket
