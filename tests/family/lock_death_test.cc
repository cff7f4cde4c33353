// Processes are killed inside the shard's lock; after each death the lock is taken over, the stack rebuilt from its
// slabs, and every connection but at most the one that the dead process was changing carries on, byte for byte.
//
// Most die at a random moment, killed from outside. Some die at a random instruction, counted by single steps,
// which takes its time but happens again in the same way. BYPASS_TEST_LONG=1: 20 times as many.
#include <time.h>

#include <cstdio>
#include <cstdlib>

#include "family/colony.h"
#include "family/stepper.h"

namespace bypass::test {
namespace {

constexpr std::size_t kMoments = 1000, kCrowdedMoments = 200, kInstructions = 40, kLongFactor = 20;
constexpr std::int64_t kLongestLife = 150'000;     // ns
constexpr std::uint64_t kMostInstructions = 4000;  // some calls

std::size_t times(std::size_t short_form) {
  return std::getenv("BYPASS_TEST_LONG") != nullptr ? short_form * kLongFactor : short_form;
}

using Act = void (Colony::*)(std::mt19937&);

/// The life of a child; never returns. `at` is called in front of the work that it is to die in.
template <typename F>
void work_until_death(Colony& colony, Act act, std::mt19937& random, F&& at) {
  if (!colony.household().family.on_fork_child()) _exit(1);
  const unsigned before = random() % 16;
  for (unsigned i = 0; i < 100'000; i++) {
    if (i == before) at();
    if (!colony.lock().lock()) _exit(2);
    (colony.*act)(random);
    colony.lock().unlock();
  }
  _exit(3);
}

struct Tally {
  std::size_t deaths = 0, nameless = 0, lost = 0;
};

/// After a death inside: all must be as if nothing had happened, one connection apart.
void recover(Colony& colony, std::size_t clean, Tally& tally) {
  const void* named = colony.rebuild();
  ASSERT_EQ(colony.tcp().violated(), nullptr);
  colony.settle();
  ASSERT_EQ(colony.wrong(), 0U) << "bytes";
  std::size_t lost = 0;
  ASSERT_EQ(colony.replace_lost(named, lost), 0U) << "lost, and not the one that was being changed";
  ASSERT_LE(lost, 1U);
  if (lost != 0) colony.settle();
  ASSERT_EQ(colony.tcp().violated(), nullptr);
  ASSERT_TRUE(clean == 0 || colony.memory().stats().used_bytes == clean)
      << colony.memory().stats().used_bytes - clean << " bytes leaked, lost " << lost << ", named " << named << "\n"
      << colony.holders();
  tally.deaths++;
  tally.lost += lost;
  tally.nameless += named == nullptr ? 1 : 0;
}

void wait_for_death(socket::Child& child) {
  child.wait_for_end();
  const int status = child.wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
}

void report(const Tally& tally, Colony& colony) {
  std::printf("%zu deaths inside the lock, %zu with no connection named; %zu connections lost; %llu bytes checked\n",
              tally.deaths, tally.nameless, tally.lost, static_cast<unsigned long long>(colony.moved()));
}

void live_for(std::int64_t nanoseconds) {
  timespec begin{}, now{};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - begin.tv_sec) * 1'000'000'000 + now.tv_nsec - begin.tv_nsec < nanoseconds);
}

/// `clean`: what Memory must have in use after each recovery; 0: that changes.
void die_at_moments(Colony& colony, Act act, std::size_t deaths, std::size_t clean) {
  socket::Shared<std::atomic<bool>> ready;
  Tally tally;
  std::mt19937 random(1);
  while (tally.deaths < deaths && !testing::Test::HasFailure()) {
    SCOPED_TRACE("death " + std::to_string(tally.deaths));
    *ready = false;
    std::mt19937 childs(static_cast<std::uint32_t>(random()));
    socket::Child child([&] { work_until_death(colony, act, childs, [&] { *ready = true; }); });
    socket::spin_until([&] { return ready->load(); });
    live_for(static_cast<std::int64_t>(random() % kLongestLife));
    child.kill();
    wait_for_death(child);
    const auto taken = colony.lock().take();
    if (taken == socket::ShardLock::Taken::kRecovered) recover(colony, clean, tally);
    colony.household().family.sweep([](std::uint32_t) {});
    colony.lock().unlock();
  }
  report(tally, colony);
}

TEST(LockDeath, AtRandomMoments_OtherConnectionsAreWhole) {
  Colony colony;
  die_at_moments(colony, &Colony::act, times(kMoments), colony.memory().stats().used_bytes);
}

TEST(LockDeath, AmongConnectionsThatComeAndGo_OthersAreWhole) {
  Colony colony;
  die_at_moments(colony, &Colony::act_in_a_crowd, times(kCrowdedMoments), 0);
}

socket::ShardLock* lock_of_child;

TEST(LockDeath, AtRandomInstructions_OtherConnectionsAreWhole) {
  Colony colony;
  const std::size_t clean = colony.memory().stats().used_bytes;
  Tally tally;
  for (std::uint32_t seed = 1; seed <= times(kInstructions) && !HasFailure(); seed++) {
    SCOPED_TRACE("death " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::uint64_t last = 1 + random() % kMostInstructions;
    lock_of_child = &colony.lock();
    socket::Child child([&] {
      work_until_death(colony, &Colony::act, random,
                       [&] { Stepper::die_after(last, [] { return lock_of_child->mine(); }); });
    });
    wait_for_death(child);
    ASSERT_EQ(colony.lock().take(), socket::ShardLock::Taken::kRecovered);
    recover(colony, clean, tally);
    colony.household().family.sweep([](std::uint32_t) {});
    colony.lock().unlock();
  }
  report(tally, colony);
}

}  // namespace
}  // namespace bypass::test
