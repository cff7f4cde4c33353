#include "stack/memory/memory.h"

#include <cstring>
#include <map>
#include <vector>

#include "stack/memory/region.h"

namespace bypass {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(Memory, AnySize_IsRoundedUpAndAligned) {
  Region memory(256 * kMiB, 200 * kMiB);
  for (std::size_t bytes : {1UL, 256UL, 257UL, 4095UL, 4096UL, 65537UL, 3 * kMiB, kMaxBlock}) {
    void* block = memory->allocate(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_GE(memory->size_of(block), bytes);
    EXPECT_EQ(memory->size_of(block), Memory::block_size(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % std::min<std::size_t>(Memory::block_size(bytes), 4096), 0U);
    EXPECT_TRUE(memory->contains(block));
  }
  EXPECT_EQ(memory->allocate(kMaxBlock + 1), nullptr);
}

TEST(Memory, Released_ComesBackFirst) {
  Region memory(16 * kMiB, 8 * kMiB);
  void* first = memory->allocate(4096);
  void* second = memory->allocate(4096);
  memory->release(first);
  memory->release(second);
  EXPECT_EQ(memory->allocate(4096), second);
  EXPECT_EQ(memory->allocate(4096), first);
}

TEST(Memory, Budget_BoundsWhatIsInUse) {
  Region memory(64 * kMiB, kMiB);
  std::vector<void*> blocks;
  while (void* block = memory->allocate(65536)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 16U);
  EXPECT_EQ(memory->stats().used_bytes, kMiB);
  EXPECT_EQ(memory->allocate(1), nullptr);
  memory->release(blocks.back());
  EXPECT_NE(memory->allocate(65536), nullptr);
}

TEST(Memory, KeptBack_IsForObjectsAlone) {
  Region memory(kMiB, 64 << 10);
  memory->keep_back(16 << 10);
  EXPECT_EQ(memory->room(), 48U << 10);
  EXPECT_FALSE(memory->has(64 << 10));
  EXPECT_EQ(memory->allocate_bulk(64 << 10), nullptr);
  ASSERT_NE(memory->allocate_bulk(32 << 10), nullptr);
  ASSERT_NE(memory->allocate_bulk(16 << 10), nullptr);
  EXPECT_EQ(memory->allocate_bulk(256), nullptr);
  EXPECT_FALSE(memory->is_short());
  EXPECT_NE(memory->allocate(4 << 10), nullptr);
  EXPECT_FALSE(memory->is_short());
  EXPECT_NE(memory->allocate(256), nullptr);
  EXPECT_TRUE(memory->is_short());
  EXPECT_TRUE(memory->refuses_connections());
  EXPECT_NE(memory->allocate(8 << 10), nullptr) << "but what those that are there need";
  EXPECT_EQ(memory->room(), 0U);
}

TEST(Memory, SmallBlocksReleased_ServeALargeOne) {
  Region memory(8 * kMiB, 4 * kMiB);
  std::vector<void*> blocks;
  while (void* block = memory->allocate(256)) blocks.push_back(block);
  for (void* block : blocks) memory->release(block);
  const std::size_t touched = memory->stats().touched_bytes;
  void* large = memory->allocate(2 * kMiB);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(memory->stats().touched_bytes, touched) << "joined, not taken from untouched pages";
  memory->release(large);
  for (void*& block : blocks) ASSERT_NE(block = memory->allocate(256), nullptr);
}

TEST(Memory, Unused_TouchesNothing) {
  Region memory(std::size_t{64} << 30, std::size_t{1} << 30);
  EXPECT_LE(memory->stats().touched_bytes, 2 * kMiB);
  void* block = memory->allocate(4 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_LE(memory->stats().touched_bytes, 12 * kMiB);
}

TEST(Memory, TooSmallARegion_IsRefused) {
  alignas(4096) static std::byte page[4096];
  EXPECT_EQ(Memory::create(page, sizeof page, sizeof page), nullptr);
}

/// Blocks with their contents, kept beside the allocator. A block that overlaps another would destroy its bytes.
class Model {
 public:
  Model(Memory& memory, std::uint64_t seed) : memory_(memory), dice_(seed) {}

  void step() {
    if (dice_.chance(53) || blocks_.empty()) return allocate();
    release(dice_.below(blocks_.size()));
  }
  void release_all() {
    while (!blocks_.empty()) release(blocks_.size() - 1);
  }
  /// A death: the owners of some blocks have lost them, and lists and counters are garbage.
  void rebuild() {
    memory_.begin_rebuild();
    for (std::size_t i = 0; i < blocks_.size();) {
      if (dice_.chance(10)) {
        used_ -= blocks_[i].size;
        blocks_[i] = blocks_.back();
        blocks_.pop_back();
        continue;
      }
      EXPECT_TRUE(memory_.mark_in_use(blocks_[i].at));
      EXPECT_FALSE(memory_.mark_in_use(blocks_[i].at)) << "twice";
      EXPECT_FALSE(memory_.mark_in_use(blocks_[i].at + 8)) << "no block's start";
      i++;
    }
    memory_.finish_rebuild();
    check();
  }
  void check() {
    EXPECT_EQ(memory_.stats().used_bytes, used_);
    for (const Block& b : blocks_) verify(b);
  }

 private:
  struct Block {
    std::byte* at;
    std::size_t size;
    std::uint8_t value;
  };
  void allocate() {
    const std::size_t bytes = dice_.spread(20);
    auto* at = static_cast<std::byte*>(memory_.allocate(bytes));
    if (at == nullptr) {
      EXPECT_GT(used_ + Memory::block_size(bytes), memory_.stats().budget_bytes) << "refused within the budget";
      return;
    }
    Block block{at, Memory::block_size(bytes), static_cast<std::uint8_t>(dice_.below(256))};
    std::memset(at, block.value, std::min<std::size_t>(block.size, 512));
    at[block.size - 1] = std::byte{block.value};
    used_ += block.size;
    blocks_.push_back(block);
  }
  void verify(const Block& b) {
    ASSERT_EQ(memory_.size_of(b.at), b.size);
    ASSERT_EQ(b.at[0], std::byte{b.value});
    ASSERT_EQ(b.at[255], std::byte{b.value});
    ASSERT_EQ(b.at[b.size - 1], std::byte{b.value});
  }
  void release(std::size_t index) {
    verify(blocks_[index]);
    memory_.release(blocks_[index].at);
    used_ -= blocks_[index].size;
    blocks_[index] = blocks_.back();
    blocks_.pop_back();
  }

  Memory& memory_;
  Dice dice_;
  std::vector<Block> blocks_;
  std::size_t used_ = 0;
};

TEST(Memory, RandomUse_MatchesTheModel) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    SCOPED_TRACE(seed);
    Region memory(64 * kMiB, 3 * kMiB);
    Model model(*memory, seed);
    for (int i = 0; i < 3000; i++) model.step();
    model.check();
    model.release_all();
    EXPECT_EQ(memory->stats().used_bytes, 0U);
  }
}

TEST(Memory, RebuildInBetween_KeepsTheMarkedAndFreesTheRest) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    SCOPED_TRACE(seed);
    Region memory(64 * kMiB, 3 * kMiB);
    Model model(*memory, seed);
    for (int round = 0; round < 6; round++) {
      for (int i = 0; i < 500; i++) model.step();
      model.rebuild();
    }
    model.release_all();
    EXPECT_EQ(memory->stats().used_bytes, 0U);
    EXPECT_LE(memory->stats().touched_bytes, 8 * kMiB) << "what a death lost is used again";
  }
}

TEST(Memory, FreeBlocksScrambled_RebuildDoesNotFollowThem) {
  Region memory(16 * kMiB, 8 * kMiB);
  std::vector<std::byte*> kept, freed;
  for (int i = 0; i < 100; i++) {
    kept.push_back(static_cast<std::byte*>(memory->allocate(1024)));
    freed.push_back(static_cast<std::byte*>(memory->allocate(1024)));
  }
  for (std::byte* block : freed) memory->release(block);
  for (std::byte* block : freed) std::memset(block, 0xa5, 1024);  // links included
  memory->begin_rebuild();
  for (std::byte* block : kept) EXPECT_TRUE(memory->mark_in_use(block));
  memory->finish_rebuild();
  EXPECT_EQ(memory->stats().used_bytes, 100U * 1024);
  for (int i = 0; i < 100; i++) EXPECT_NE(memory->allocate(1024), nullptr);
}

TEST(Memory, UsedDuringARebuild_StaysTrue) {
  Region memory(16 * kMiB, 8 * kMiB);
  void* kept = memory->allocate(1024);
  void* lost = memory->allocate(1024);
  void* given_up = memory->allocate(1024);
  memory->begin_rebuild();
  ASSERT_TRUE(memory->mark_in_use(kept));
  memory->release(given_up);  // its owner was found broken before it marked anything
  void* fresh = memory->allocate(1024);
  memory->release(kept);
  memory->finish_rebuild();
  EXPECT_EQ(memory->stats().used_bytes, 1024U);
  EXPECT_NE(fresh, lost);
  EXPECT_EQ(memory->size_of(fresh), 1024U);
}

TEST(Memory, DeathDuringARebuild_TheNextOneStartsAfresh) {
  Region memory(16 * kMiB, 8 * kMiB);
  void* kept = memory->allocate(1024);
  void* lost = memory->allocate(1024);
  memory->begin_rebuild();
  ASSERT_TRUE(memory->mark_in_use(lost));
  memory->begin_rebuild();
  EXPECT_TRUE(memory->mark_in_use(kept));
  memory->finish_rebuild();
  EXPECT_EQ(memory->stats().used_bytes, 1024U);
}

TEST(Memory, StrangePointers_AreNotMarked) {
  Region memory(16 * kMiB, 8 * kMiB);
  auto* block = static_cast<std::byte*>(memory->allocate(4096));
  int outside = 0;
  memory->begin_rebuild();
  EXPECT_FALSE(memory->mark_in_use(&outside));
  EXPECT_FALSE(memory->mark_in_use(nullptr));
  EXPECT_FALSE(memory->mark_in_use(&*memory));
  EXPECT_FALSE(memory->mark_in_use(block + 256));
  EXPECT_FALSE(memory->mark_in_use(block + 15 * kMiB));
  memory->finish_rebuild();
}

}  // namespace
}  // namespace bypass
