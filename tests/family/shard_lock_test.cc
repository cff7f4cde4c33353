#include "socket/shard_lock.h"

#include <sys/syscall.h>

#include <thread>
#include <vector>

#include "family/fixture.h"
#include "os/os.h"

namespace bypass::socket {
namespace {

using Taken = ShardLock::Taken;

TEST(ShardLock, Free_IsTakenAndLetGo) {
  Household h;
  EXPECT_TRUE(h.lock.try_lock());
  EXPECT_TRUE(h.lock.mine());
  h.lock.unlock();
  EXPECT_FALSE(h.lock.mine());
  EXPECT_TRUE(h.lock.lock());
  h.lock.unlock();
}

TEST(ShardLock, TakenAgainByItsHolder_SaysOwnAndDoesNotWait) {
  Household h;
  ASSERT_TRUE(h.lock.lock());
  EXPECT_EQ(h.lock.try_take(), Taken::kOwn);
  EXPECT_FALSE(h.lock.lock());
  h.lock.unlock();
}

TEST(ShardLock, ForkedChild_IsNotItsParent) {
  Household h;
  ASSERT_TRUE(h.lock.lock());
  Shared<int> seen;
  Child child([&] {
    EXPECT_EQ(h.family.slot(), kNoSlot) << "wiped by the kernel";
    *seen = static_cast<int>(h.lock.try_take());  // takes a slot of its own
  });
  child.wait();
  EXPECT_EQ(*seen, static_cast<int>(Taken::kBusy));
  h.lock.unlock();
}

TEST(ShardLock, ManyProcesses_ExcludeEachOther) {
  Household h;
  Shared<long> count;  // plain: only the lock protects it
  constexpr int kProcesses = 3, kRounds = 20000;
  const auto work = [&] {
    for (int i = 0; i < kRounds; i++) {
      if (!h.lock.lock()) _exit(1);
      *count = *count + 1;
      h.lock.unlock();
    }
  };
  {
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < kProcesses; i++) children.push_back(std::make_unique<Child>(work));
    for (auto& child : children) EXPECT_EQ(child->wait(), 0);
  }
  EXPECT_EQ(*count, long{kProcesses} * kRounds);
}

/// A child that takes the lock, names `changing`, and stays inside.
template <typename F>
void stay_inside(Household& h, std::atomic<bool>& inside, const void* changing, F&& then) {
  if (!h.family.on_fork_child() || !h.lock.lock()) _exit(1);
  h.lock.set_changing(changing);
  inside = true;
  then();
}

struct Recovery {
  int times = 0;
  const void* changing = nullptr;
  static void note(void* self, const void* changing) {
    auto& r = *static_cast<Recovery*>(self);
    r.times++;
    r.changing = changing;
  }
};

TEST(ShardLock, OwnerKilledInside_NextLockerRecovers) {
  Household h;
  Recovery recovery;
  h.lock.set_handlers({&recovery, Recovery::note, nullptr});
  Shared<std::atomic<bool>> inside;
  int object = 0;
  Child child([&] { stay_inside(h, *inside, &object, [] { pause(); }); });
  spin_until([&] { return inside->load(); });
  EXPECT_EQ(h.lock.try_take(), Taken::kBusy);
  child.kill();
  child.wait_for_end();  // a zombie: the process has ended, whether or not its parent has waited
  EXPECT_TRUE(h.lock.lock());
  EXPECT_EQ(recovery.times, 1);
  EXPECT_EQ(recovery.changing, &object);
  EXPECT_EQ(h.lock.changing(), nullptr);
  h.lock.unlock();
  EXPECT_TRUE(h.lock.lock());
  EXPECT_EQ(recovery.times, 1) << "once a death";
  h.lock.unlock();
}

TEST(ShardLock, OwnerKilledInside_WhoOnlyTriesFindsOut) {
  Household h;
  Shared<std::atomic<bool>> inside;
  Child child([&] { stay_inside(h, *inside, nullptr, [] { pause(); }); });
  spin_until([&] { return inside->load(); });
  child.kill();
  child.wait_for_end();
  Taken taken = Taken::kBusy;
  for (int i = 0; i < 10000 && taken == Taken::kBusy; i++) taken = h.lock.try_take();
  EXPECT_EQ(taken, Taken::kRecovered);
  h.lock.unlock();
}

TEST(ShardLock, RecovererKilled_TheNextOneRecovers) {
  Household h;
  Shared<std::atomic<bool>> inside;
  const auto die_inside = [&] { stay_inside(h, *inside, nullptr, [] { raise(SIGKILL); }); };
  Child first(die_inside);
  first.wait_for_end();
  Child second(die_inside);
  second.wait_for_end();
  EXPECT_EQ(h.lock.take(), Taken::kRecovered);
  h.lock.unlock();
}

TEST(ShardLock, SleepersAtADeath_AllGetThrough) {
  Household h;
  Shared<std::atomic<bool>> inside;
  Shared<std::atomic<int>> recovered;
  Child owner([&] { stay_inside(h, *inside, nullptr, [] { pause(); }); });
  spin_until([&] { return inside->load(); });
  const auto wait = [&] {
    if (h.lock.take() == Taken::kRecovered) (*recovered)++;
    h.lock.unlock();
  };
  std::vector<std::unique_ptr<Child>> waiting;
  for (int i = 0; i < 3; i++) waiting.push_back(std::make_unique<Child>(wait));
  owner.kill();
  for (auto& child : waiting) EXPECT_EQ(child->wait(), 0);
  EXPECT_EQ(recovered->load(), 1);
}

TEST(ShardLock, OwnersThreadGoneWhileItsProcessLives_IsADeath) {
  Household h;
  Shared<std::atomic<bool>> inside;
  Child child([&] {
    if (!h.family.on_fork_child()) _exit(1);
    std::thread([&] {
      (void)h.lock.lock();
      *inside = true;
      os::call(SYS_exit, 0);  // this thread alone, as another thread's exec would end it
    }).detach();
    pause();
  });
  spin_until([&] { return inside->load(); });
  EXPECT_EQ(h.lock.take(), Taken::kRecovered);
  h.lock.unlock();
}

// The thread stays a zombie as long as the others live, as when a filter kills only it (seccomp(2)).
TEST(ShardLock, OwnersFirstThreadGoneWhileItsProcessLives_IsADeath) {
  Household h;
  Shared<std::atomic<bool>> inside;
  Child child([&] {
    if (!h.family.on_fork_child()) _exit(1);
    std::thread([] { pause(); }).detach();
    (void)h.lock.lock();
    *inside = true;
    os::call(SYS_exit, 0);
  });
  spin_until([&] { return inside->load(); });
  EXPECT_EQ(h.lock.take(), Taken::kRecovered);
  EXPECT_EQ(::kill(child.pid(), 0), 0);
  h.lock.unlock();
}

TEST(ShardLock, AnotherThreadExecs_TheHolderIsDead) {
  Household h;
  Shared<std::atomic<bool>> inside;
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  Child child([&] {
    if (!h.family.on_fork_child()) _exit(1);
    std::thread([&] {
      (void)h.lock.lock();
      *inside = true;
      pause();
    }).detach();
    spin_until([&] { return inside->load(); });
    dup2(pipe_ends[0], 0);
    execl("/bin/cat", "cat", nullptr);
    _exit(1);
  });
  spin_until([&] { return inside->load(); });
  EXPECT_EQ(h.lock.take(), Taken::kRecovered);
  EXPECT_EQ(::kill(child.pid(), 0), 0);
  h.lock.unlock();
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(ShardLock, HeldForExec_OthersGoOnAndItsOwnThreadsStayOut) {
  Household h;
  Shared<std::atomic<int>> step;
  Child child([&] {
    if (!h.family.on_fork_child() || !h.lock.hold_for_exec()) _exit(1);
    std::thread([&] {
      if (h.lock.try_take() != Taken::kBusy) _exit(2);
      *step = 1;
      spin_until([&] { return *step == 2; });
    }).join();
    h.lock.give_up_exec();
    if (!h.lock.lock()) _exit(3);
    h.lock.unlock();
  });
  spin_until([&] { return *step == 1; });
  EXPECT_EQ(h.lock.take(), Taken::kRecovered);
  h.lock.unlock();
  *step = 2;
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(h.lock.lock());
  h.lock.unlock();
}

// However often another process finds the lock held.
TEST(ShardLock, HeldForACopy_OthersWaitAndItsOwnThreadsStayOut) {
  Household h;
  Shared<std::atomic<int>> step;
  Child child([&] {
    if (!h.family.on_fork_child() || !h.lock.hold_for_copy()) _exit(1);
    std::thread([&] {
      if (h.lock.try_take() != Taken::kBusy) _exit(2);
      *step = 1;
      spin_until([&] { return *step == 2; });
    }).join();
    h.lock.let_others_in();
    h.family.die_to_others();
  });
  spin_until([&] { return *step == 1; });
  for (int i = 0; i < 5000; i++) ASSERT_EQ(h.lock.try_take(), Taken::kBusy);
  *step = 2;
  EXPECT_EQ(h.lock.take(), Taken::kYes);
  h.lock.unlock();
  EXPECT_EQ(child.wait(), 0);
}

TEST(ShardLock, ExecFailed_EverythingIsAsBefore) {
  Household h;
  ASSERT_TRUE(h.lock.hold_for_exec());
  h.lock.give_up_exec();
  EXPECT_TRUE(h.lock.try_lock());
  h.lock.unlock();
}

/// Work in the order in which it was done.
struct Done {
  std::vector<std::uint32_t> operations;
  static void note(void* self, const Deferred& work) { static_cast<Done*>(self)->operations.push_back(work.operation); }
};

TEST(ShardLock, DeferredWhileHeld_RunsAtUnlockInOrder) {
  Household h;
  Done done;
  h.lock.set_handlers({&done, nullptr, Done::note});
  ASSERT_TRUE(h.lock.lock());
  for (std::uint32_t i = 1; i <= 3; i++) EXPECT_TRUE(h.lock.defer({.operation = i}));
  EXPECT_TRUE(done.operations.empty());
  h.lock.unlock();
  EXPECT_EQ(done.operations, (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST(ShardLock, DeferredWhileFree_RunsAtOnce) {
  Household h;
  Done done;
  h.lock.set_handlers({&done, nullptr, Done::note});
  EXPECT_TRUE(h.lock.defer({.operation = 7}));
  EXPECT_EQ(done.operations, (std::vector<std::uint32_t>{7}));
}

TEST(ShardLock, DeferredToTheFull_SaysSo) {
  Household h;
  ASSERT_TRUE(h.lock.lock());
  for (std::uint32_t i = 0; i < DeferredList::kPlaces; i++) EXPECT_TRUE(h.lock.defer({}));
  EXPECT_FALSE(h.lock.defer({}));
  h.lock.unlock();
  EXPECT_TRUE(h.lock.defer({}));
}

TEST(ShardLock, DeferredByAnotherProcess_TheHolderDoesIt) {
  Household h;
  Done done;
  h.lock.set_handlers({&done, nullptr, Done::note});
  ASSERT_TRUE(h.lock.lock());
  Child child([&] {
    if (!h.lock.defer({.operation = 5})) _exit(1);
  });
  EXPECT_EQ(child.wait(), 0);
  h.lock.unlock();
  EXPECT_EQ(done.operations, (std::vector<std::uint32_t>{5}));
}

TEST(ShardLock, HolderDiesWithWorkDeferred_TheNextOneDoesIt) {
  Household h;
  Done done;
  h.lock.set_handlers({&done, nullptr, Done::note});
  Shared<std::atomic<bool>> inside;
  Child child([&] {
    stay_inside(h, *inside, nullptr, [&] {
      (void)h.lock.defer({.operation = 9});
      raise(SIGKILL);
    });
  });
  child.wait_for_end();
  ASSERT_TRUE(h.lock.lock());
  h.lock.unlock();
  EXPECT_EQ(done.operations, (std::vector<std::uint32_t>{9}));
}

Household* handlers_household;
Taken handlers_answer;

TEST(ShardLock, SignalHandlerOnTopOfTheHolder_DefersAndReturns) {
  Household h;
  Done done;
  h.lock.set_handlers({&done, nullptr, Done::note});
  handlers_household = &h;
  const auto before = std::signal(SIGUSR1, [](int) {
    handlers_answer = handlers_household->lock.try_take();
    (void)handlers_household->lock.defer({.operation = 3});
  });
  ASSERT_TRUE(h.lock.lock());
  raise(SIGUSR1);
  EXPECT_EQ(handlers_answer, Taken::kOwn);
  EXPECT_TRUE(done.operations.empty());
  h.lock.unlock();
  EXPECT_EQ(done.operations, (std::vector<std::uint32_t>{3}));
  std::signal(SIGUSR1, before);
}

}  // namespace
}  // namespace bypass::socket
