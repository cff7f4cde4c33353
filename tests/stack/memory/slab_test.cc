#include "stack/memory/slab.h"

#include <cstring>
#include <map>
#include <vector>

#include "stack/memory/region.h"

namespace bypass {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct alignas(64) Thing {
  std::uint64_t number = 7;
  std::byte room[760]{};
};
struct Small {
  std::uint32_t value = 0;
};

TEST(Slab, Freed_OldIdFindsNothing) {
  Region memory(16 * kMiB, 8 * kMiB);
  Slab<Thing> slab(*memory);
  Thing* thing = slab.allocate();
  EXPECT_EQ(thing->number, 7U);
  const SlotId id = slab.id_of(thing);
  EXPECT_EQ(slab.get(id), thing);
  slab.free(thing);
  EXPECT_EQ(slab.get(id), nullptr);
  EXPECT_EQ(slab.allocate(), thing) << "the slot is used again";
  EXPECT_EQ(slab.get(id), nullptr) << "by somebody else";
  EXPECT_EQ(slab.get({}), nullptr);
  EXPECT_EQ(slab.get({1000000, 1}), nullptr);
}

TEST(Slab, Objects_AreAlignedAndCostLittleMore) {
  Region memory(16 * kMiB, 8 * kMiB);
  Slab<Thing> slab(*memory);
  for (int i = 0; i < 200; i++) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab.allocate()) % 64, 0U);
  Slab<Small> small(*memory);
  (void)small.allocate();
  EXPECT_GT(small.capacity(), 5000U);
  EXPECT_GE(slab.capacity(), 3 * (SlabBase::kChunk / sizeof(Thing) - 1));
}

TEST(Slab, AnyOf_AsksLivingObjectsUntilOneIsMeant) {
  Region memory(16 * kMiB, 8 * kMiB);
  Slab<Small> slab(*memory);
  const auto of_number = [&slab](std::uint32_t number, int& asked) {
    return slab.any_of([&](const Small& small) { return asked++, small.value == number; });
  };
  int asked = 0;
  EXPECT_FALSE(of_number(0, asked));
  EXPECT_EQ(asked, 0) << "slots without an object";
  Small* const first = slab.allocate(Small{1});
  for (std::uint32_t number : {2, 3, 4}) (void)slab.allocate(Small{number});
  EXPECT_TRUE(of_number(2, asked));
  EXPECT_EQ(asked, 2) << "those behind it are asked, too";
  EXPECT_FALSE(of_number(5, asked));
  EXPECT_EQ(asked, 2 + 4);
  slab.free(first);
  EXPECT_FALSE(of_number(1, asked)) << "it is gone";
}

TEST(Slab, MemoryUsedUp_AllocateSaysSo) {
  Region memory(16 * kMiB, 2 * SlabBase::kChunk + 2 * kMinBlock);
  Slab<Thing> slab(*memory);
  std::size_t made = 0;
  while (slab.allocate() != nullptr) made++;
  EXPECT_EQ(made, slab.capacity());
  EXPECT_EQ(slab.size(), made);
}

TEST(Slab, DoubtfulPointers_AreToldFromObjects) {
  Region memory(16 * kMiB, 8 * kMiB);
  Slab<Thing> slab(*memory);
  Thing* thing = slab.allocate();
  Thing* other = slab.allocate();
  EXPECT_TRUE(slab.lives(thing));
  EXPECT_FALSE(slab.lives(&thing->room));
  EXPECT_FALSE(slab.lives(&slab));
  EXPECT_FALSE(slab.lives(nullptr));
  slab.free(other);
  EXPECT_FALSE(slab.lives(other));
}

TEST(Slab, RandomUse_MatchesTheModel) {
  for (std::uint64_t seed = 1; seed <= 10; seed++) {
    SCOPED_TRACE(seed);
    Region memory(64 * kMiB, 32 * kMiB);
    Dice dice(seed);
    Slab<Thing> slab(*memory);
    std::map<Thing*, SlotId> model;
    std::vector<SlotId> gone;
    for (int i = 0; i < 3000; i++) {
      if (model.empty() || dice.chance(55)) {
        Thing* thing = slab.allocate();
        thing->number = slab.id_of(thing).index;
        ASSERT_TRUE(model.emplace(thing, slab.id_of(thing)).second) << "given out twice";
      } else {
        auto it = std::next(model.begin(), static_cast<long>(dice.below(model.size())));
        gone.push_back(it->second);
        slab.free(it->first);
        model.erase(it);
      }
    }
    EXPECT_EQ(slab.size(), model.size());
    for (auto& [thing, id] : model) {
      EXPECT_EQ(slab.get(id), thing);
      EXPECT_EQ(thing->number, id.index);
    }
    for (const SlotId& id : gone) EXPECT_EQ(slab.get(id), nullptr);
    std::size_t seen = 0;
    slab.for_each([&](Thing& thing) { seen += model.count(&thing); });
    EXPECT_EQ(seen, model.size());
  }
}

TEST(Slab, Rebuilt_KeepsTheLivingAndReusesTheRest) {
  Region memory(64 * kMiB, 32 * kMiB);
  auto* slab = new (memory->allocate(sizeof(Slab<Thing>))) Slab<Thing>(*memory);
  std::vector<Thing*> things;
  for (int i = 0; i < 300; i++) things.push_back(slab->allocate());
  for (std::size_t i = 0; i < things.size(); i += 2) slab->free(things[i]);
  const std::size_t capacity = slab->capacity();
  // Garbage where dead objects lie. Nothing there may matter.
  for (std::size_t i = 0; i < things.size(); i += 2) std::memset(static_cast<void*>(things[i]), 0xa5, sizeof(Thing));

  memory->begin_rebuild();
  ASSERT_TRUE(memory->mark_in_use(slab));
  ASSERT_TRUE(slab->rebuild());
  memory->finish_rebuild();

  EXPECT_EQ(slab->size(), 150U);
  for (std::size_t i = 1; i < things.size(); i += 2) EXPECT_TRUE(slab->lives(things[i]));
  while (slab->size() < capacity) ASSERT_NE(slab->allocate(), nullptr);
  EXPECT_EQ(slab->capacity(), capacity);
}

}  // namespace
}  // namespace bypass
