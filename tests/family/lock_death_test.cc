// Processes are killed inside the shard's lock. After each death the lock is taken over and the stack is rebuilt from
// its slabs. Every connection goes on, byte for byte, except at most the one that the dead process was changing.
//
// Most processes die at a random moment, killed from outside. Some die at a random instruction, counted by single
// steps: that takes long, but it can be repeated exactly. BYPASS_TEST_LONG=1: 20 times as many.
#include <time.h>

#include <cstdio>
#include <cstdlib>

#include "family/fork_tree.h"
#include "family/stepper.h"
#include "long_form.h"

namespace bypass::test {
namespace {

constexpr std::size_t kMoments = 1000, kCrowdedMoments = 200, kInstructions = 40, kLongFactor = 20;
constexpr std::int64_t kLongestLife = 150'000;     // ns
constexpr std::uint64_t kMostInstructions = 4000;  // some calls

std::size_t times(std::size_t short_form) {
  return long_form() ? short_form * kLongFactor : short_form;
}

using Act = void (ForkTree::*)(std::mt19937&);

/// The life of a child; never returns. `at` is called before the work in which the child is to die.
template <typename F>
void work_until_death(ForkTree& fork_tree, Act act, std::mt19937& random, F&& at) {
  if (!fork_tree.household().family.on_fork_child()) _exit(1);
  const unsigned before = random() % 16;
  for (unsigned i = 0; i < 100'000; i++) {
    if (i == before) at();
    if (!fork_tree.lock().lock()) _exit(2);
    (fork_tree.*act)(random);
    fork_tree.lock().unlock();
  }
  _exit(3);
}

struct Tally {
  std::size_t deaths = 0, nameless = 0, lost = 0;
};

/// After a death inside the lock everything must be as if nothing had happened, except for one connection.
void recover(ForkTree& fork_tree, std::size_t clean, Tally& tally) {
  const void* named = fork_tree.rebuild();
  ASSERT_EQ(fork_tree.tcp().violated(), nullptr);
  fork_tree.settle();
  ASSERT_EQ(fork_tree.wrong(), 0U) << "bytes";
  std::size_t lost = 0;
  ASSERT_EQ(fork_tree.replace_lost(named, lost), 0U) << "lost, and not the one that was being changed";
  ASSERT_LE(lost, 1U);
  if (lost != 0) fork_tree.settle();
  ASSERT_EQ(fork_tree.tcp().violated(), nullptr);
  ASSERT_TRUE(clean == 0 || fork_tree.memory().stats().used_bytes == clean)
      << fork_tree.memory().stats().used_bytes - clean << " bytes leaked, lost " << lost << ", named " << named << "\n"
      << fork_tree.holders();
  tally.deaths++;
  tally.lost += lost;
  tally.nameless += named == nullptr ? 1 : 0;
}

void wait_for_death(socket::Child& child) {
  child.wait_for_end();
  const int status = child.wait();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
}

void report(const Tally& tally, ForkTree& fork_tree) {
  std::printf("%zu deaths inside the lock, %zu with no connection named; %zu connections lost; %llu bytes checked\n",
              tally.deaths, tally.nameless, tally.lost, static_cast<unsigned long long>(fork_tree.moved()));
}

void live_for(std::int64_t nanoseconds) {
  timespec begin{}, now{};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - begin.tv_sec) * 1'000'000'000 + now.tv_nsec - begin.tv_nsec < nanoseconds);
}

/// `clean`: how much Memory must have in use after each recovery; 0: that changes.
void die_at_moments(ForkTree& fork_tree, Act act, std::size_t deaths, std::size_t clean) {
  socket::Shared<std::atomic<bool>> ready;
  Tally tally;
  std::mt19937 random(1);
  while (tally.deaths < deaths && !testing::Test::HasFailure()) {
    SCOPED_TRACE("death " + std::to_string(tally.deaths));
    *ready = false;
    std::mt19937 childs(static_cast<std::uint32_t>(random()));
    socket::Child child([&] { work_until_death(fork_tree, act, childs, [&] { *ready = true; }); });
    socket::spin_until([&] { return ready->load(); });
    live_for(static_cast<std::int64_t>(random() % kLongestLife));
    child.kill();
    wait_for_death(child);
    const auto taken = fork_tree.lock().take();
    if (taken == socket::ShardLock::Taken::kRecovered) recover(fork_tree, clean, tally);
    fork_tree.household().family.sweep([](std::uint32_t) {});
    fork_tree.lock().unlock();
  }
  report(tally, fork_tree);
}

TEST(LockDeath, AtRandomMoments_OtherConnectionsAreWhole) {
  ForkTree fork_tree;
  die_at_moments(fork_tree, &ForkTree::act, times(kMoments), fork_tree.memory().stats().used_bytes);
}

TEST(LockDeath, AmongConnectionsThatComeAndGo_OthersAreWhole) {
  ForkTree fork_tree;
  die_at_moments(fork_tree, &ForkTree::act_in_a_crowd, times(kCrowdedMoments), 0);
}

socket::ShardLock* lock_of_child;

TEST(LockDeath, AtRandomInstructions_OtherConnectionsAreWhole) {
  ForkTree fork_tree;
  const std::size_t clean = fork_tree.memory().stats().used_bytes;
  Tally tally;
  for (std::uint32_t seed = 1; seed <= times(kInstructions) && !HasFailure(); seed++) {
    SCOPED_TRACE("death " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::uint64_t last = 1 + random() % kMostInstructions;
    lock_of_child = &fork_tree.lock();
    socket::Child child([&] {
      work_until_death(fork_tree, &ForkTree::act, random,
                       [&] { Stepper::die_after(last, [] { return lock_of_child->mine(); }); });
    });
    wait_for_death(child);
    ASSERT_EQ(fork_tree.lock().take(), socket::ShardLock::Taken::kRecovered);
    recover(fork_tree, clean, tally);
    fork_tree.household().family.sweep([](std::uint32_t) {});
    fork_tree.lock().unlock();
  }
  report(tally, fork_tree);
}

}  // namespace
}  // namespace bypass::test
