#include "socket/family/family.h"

#include <map>
#include <random>
#include <thread>
#include <vector>

#include "family/fixture.h"
#include "os/os.h"
#include "stack/memory/region.h"

namespace bypass::socket {
namespace {

TEST(Family, Attached_LivesInASlotOfItsOwn) {
  Household h;
  EXPECT_EQ(h.family.slot(), 0U);
  EXPECT_TRUE(h.family.alive(0, h.family.incarnation()));
  EXPECT_FALSE(h.family.alive(0, h.family.incarnation() + 1));
  EXPECT_FALSE(h.family.alive(1, 0));
  EXPECT_EQ(h.table->slots[0].start_time, os::start_time_of(os::getpid()));
  EXPECT_NE(h.table->slots[0].start_time, 0U);
  h.family.detach();
  EXPECT_EQ(h.family.count(), 0U);
}

TEST(Family, AttachedAgainAfterExec_KeepsTheSlotAndChangesTheIncarnation) {
  Household h;
  const std::uint32_t before = h.family.incarnation();
  Family image;  // what the new image does
  ASSERT_TRUE(image.attach(*h.table));
  EXPECT_EQ(image.slot(), 0U);
  EXPECT_NE(image.incarnation(), before);
  EXPECT_EQ(h.family.count(), 1U);
}

TEST(Family, Child_TakesASlotAndIsSweptWhenDead) {
  Household h;
  Shared<std::atomic<std::uint32_t>> slot;
  Child child([&] {
    if (!h.family.on_fork_child()) _exit(1);
    *slot = h.family.slot();
    pause();
  });
  spin_until([&] { return slot->load() != 0; });
  std::vector<std::uint32_t> gone;
  const auto note = [&](std::uint32_t dead) { gone.push_back(dead); };
  EXPECT_EQ(h.family.sweep(note), 0U);
  child.kill();
  child.wait_for_end();
  EXPECT_EQ(h.family.sweep(note), 1U);
  EXPECT_EQ(gone, (std::vector<std::uint32_t>{*slot}));
  EXPECT_EQ(h.family.sweep(note), 0U);
  EXPECT_EQ(h.family.count(), 1U);
}

TEST(Family, FirstThreadEndedBeforeTheOthers_IsAlive) {
  Household h;
  Shared<std::atomic<std::uint32_t>> slot;
  Child child([&] {
    if (!h.family.on_fork_child()) _exit(1);
    std::thread([&] {
      spin_until([] { return os::tgkill(os::getpid(), os::getpid(), 0) == 0; });
      *slot = h.family.slot();
      pause();
    }).detach();
    os::call(SYS_exit, 0);
  });
  spin_until([&] { return slot->load() != 0; });
  EXPECT_EQ(h.family.sweep([](std::uint32_t) {}), 0U);
}

TEST(Family, PidUsedAgain_IsToldByTheStartTime) {
  Household h;
  Shared<std::atomic<std::uint32_t>> slot;
  Child child([&] {
    if (!h.family.on_fork_child()) _exit(1);
    *slot = h.family.slot();
    pause();
  });
  spin_until([&] { return slot->load() != 0; });
  h.table->slots[*slot].start_time = 1;
  EXPECT_EQ(h.family.sweep([](std::uint32_t) {}), 1U);
}

TEST(Family, OtherPidNamespace_IsTakenForAlive) {
  Household h;
  ProcessSlot& stranger = h.table->slots[1];
  stranger.pid = 0x3fffff;
  stranger.pid_namespace = 1;
  h.table->high = 2;
  EXPECT_TRUE(h.family.alive(1, 0));
}

TEST(Family, TableFull_AttachFails) {
  Household h;
  for (ProcessSlot& slot : h.table->slots) slot.pid = slot.pid == 0 ? 1 : slot.pid.load();
  Child child([&] { _exit(h.family.on_fork_child() ? 1 : 0); });
  EXPECT_EQ(child.wait(), 0);
}

TEST(SlotRefs, LastReference_IsTold) {
  Region memory(8U << 20, 4U << 20);
  SlotRefs refs;
  EXPECT_TRUE(refs.add(*memory, 5));
  EXPECT_TRUE(refs.add(*memory, 5));
  EXPECT_TRUE(refs.add(*memory, 9));
  EXPECT_FALSE(refs.remove(*memory, 5));
  EXPECT_FALSE(refs.drop(*memory, 9));
  EXPECT_TRUE(refs.remove(*memory, 5));
}

TEST(SlotRefs, RandomUse_MatchesTheModel) {
  Region memory(8U << 20, 4U << 20);
  std::mt19937 random(1);
  SlotRefs refs;
  std::map<std::uint32_t, std::uint32_t> model;
  std::uint32_t total = 0;
  for (int i = 0; i < 20000; i++) {
    const std::uint32_t slot = random() % (i % 2000 < 1000 ? 200 : 4);
    switch (random() % 4) {
      case 0:
      case 1:
        ASSERT_TRUE(refs.add(*memory, slot));
        model[slot]++;
        total++;
        break;
      case 2:
        if (model[slot] == 0) break;
        model[slot]--;
        EXPECT_EQ(refs.remove(*memory, slot), --total == 0);
        break;
      default:
        total -= std::exchange(model[slot], 0U);
        EXPECT_EQ(refs.drop(*memory, slot), total == 0);
    }
    ASSERT_EQ(refs.of(slot), model[slot]);
    ASSERT_EQ(refs.total(), total);
  }
  for (std::uint32_t slot = 0; slot < 200; slot++) refs.drop(*memory, slot);
  EXPECT_EQ(memory->stats().used_bytes, 0U);
}

}  // namespace
}  // namespace bypass::socket
