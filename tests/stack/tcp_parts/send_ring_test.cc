#include "stack/tcp/output/send_ring.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "stack/tcp_parts/fixture.h"

namespace bypass::tcp {
namespace {

constexpr std::size_t kLimit = 64 << 10;

void fill(const Room& room, std::size_t bytes, std::uint8_t value) {
  const std::size_t first = std::min(bytes, room.part[0].size());
  std::memset(room.part[0].data(), value, first);
  if (bytes > first) std::memset(room.part[1].data(), value, bytes - first);
}

std::size_t write(SendRing& ring, Memory& memory, std::size_t bytes, std::uint8_t value, std::size_t limit = kLimit) {
  const auto room = ring.reserve(memory, bytes, limit);
  if (!room) return 0;
  const std::size_t given = std::min(bytes, room->size());
  fill(*room, given, value);
  ring.commit(memory, given);
  return given;
}

TEST(SendRing, Empty_OwnsNoBlock) {
  Arena arena;
  SendRing ring;
  EXPECT_EQ(write(ring, *arena, 100, 1), 100U);
  EXPECT_EQ(arena.used(), SendRing::kFirstBlock);
  ring.advance(*arena, 100);
  EXPECT_EQ(arena.used(), 0U);
  EXPECT_EQ(ring.begin(), 100U);
  EXPECT_EQ(ring.end(), 100U);
}

TEST(SendRing, WrittenAgainAfterEmpty_StartsAtTheBlocksFirstByte) {
  Arena arena;
  SendRing ring;
  write(ring, *arena, 1000, 1);
  ring.advance(*arena, 1000);
  write(ring, *arena, 4096, 2);
  EXPECT_EQ(ring.spans(1000, 4096).part[0].size(), 4096U) << "no wrap";
  ring.clear(*arena);
}

TEST(SendRing, LargeFirstWrite_TakesOneBlockForIt) {
  Arena arena;
  SendRing ring;
  EXPECT_EQ(write(ring, *arena, 20000, 1), 20000U);
  EXPECT_EQ(ring.capacity(), 32768U);
  ring.clear(*arena);
}

TEST(SendRing, Wraps_SpansAreTwoParts) {
  Arena arena;
  SendRing ring;
  write(ring, *arena, 3000, 1);
  ring.advance(*arena, 2000);
  write(ring, *arena, 2000, 2, 4096);
  const auto spans = ring.spans(2900, 1500);
  EXPECT_EQ(spans.part[0].size(), 1196U);
  EXPECT_EQ(spans.part[1].size(), 304U);
  EXPECT_EQ(spans.part[0][99], std::byte{1});
  EXPECT_EQ(spans.part[0][100], std::byte{2});
  EXPECT_EQ(spans.part[1][303], std::byte{2});
  ring.clear(*arena);
}

TEST(SendRing, FullAtTheLimit_WouldBlockUntilAcknowledged) {
  Arena arena;
  SendRing ring;
  EXPECT_EQ(write(ring, *arena, 10000, 1, 5000), 5000U) << "the limit is no power of two";
  EXPECT_EQ(ring.reserve(*arena, 1, 5000).error(), Error::kWouldBlock);
  ring.advance(*arena, 10);
  EXPECT_EQ(write(ring, *arena, 100, 1, 5000), 10U);
  ring.clear(*arena);
}

TEST(SendRing, NoMemory_SaysSoOnlyWhenNothingCanFree) {
  Arena arena(1 << 20, 8192);
  SendRing first, second;
  EXPECT_EQ(write(first, *arena, 8192, 1), 8192U);
  EXPECT_EQ(first.reserve(*arena, 1, kLimit).error(), Error::kWouldBlock);
  EXPECT_EQ(second.reserve(*arena, 1, kLimit).error(), Error::kNoMemory);
  first.clear(*arena);
}

TEST(SendRing, LittleMemory_GivesASmallerBlock) {
  Arena arena(1 << 20, 8192);
  SendRing ring;
  EXPECT_EQ(write(ring, *arena, 60000, 1), 8192U);
  ring.clear(*arena);
}

TEST(SendRing, AcknowledgedWhileReserved_BlockStaysUntilCommit) {
  Arena arena;
  SendRing ring;
  write(ring, *arena, 100, 1);
  const auto room = ring.reserve(*arena, 50, kLimit);
  ASSERT_TRUE(room);
  EXPECT_EQ(ring.reserve(*arena, 1, kLimit).error(), Error::kAlready);
  ring.advance(*arena, 100);
  EXPECT_NE(arena.used(), 0U);
  fill(*room, 50, 7);
  ring.commit(*arena, 50);
  EXPECT_EQ(ring.spans(100, 50).part[0][49], std::byte{7});
  ring.advance(*arena, 150);
  EXPECT_EQ(arena.used(), 0U);
}

TEST(SendRing, ReservationGivenUp_LeavesNothing) {
  Arena arena;
  SendRing ring;
  ASSERT_TRUE(ring.reserve(*arena, 50, kLimit));
  ring.commit(*arena, 0);
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(arena.used(), 0U);
}

TEST(SendRing, Pinned_NeitherMovesNorGoes) {
  Arena arena;
  SendRing ring;
  write(ring, *arena, 4000, 1);
  ring.pin();
  const void* block = ring.block();
  EXPECT_EQ(write(ring, *arena, 1000, 2), 96U) << "what the block still has";
  ring.advance(*arena, 4096);
  EXPECT_EQ(ring.block(), block);
  ring.unpin(*arena);
  EXPECT_EQ(ring.block(), nullptr);
}

TEST(SendRing, ClearedWhilePinned_GoesWithThePin) {
  Arena arena;
  SendRing ring;
  write(ring, *arena, 4000, 1);
  ring.pin();
  ring.clear(*arena);
  EXPECT_TRUE(ring.busy());
  EXPECT_NE(arena.used(), 0U);
  ring.unpin(*arena);
  EXPECT_EQ(arena.used(), 0U);
}

// Random writes, acknowledgements and look-ups against a plain deque.
TEST(SendRing, RandomOperations_AgreeWithAModel) {
  for (std::uint32_t seed = 0; seed < 8; seed++) {
    SCOPED_TRACE(seed);
    Arena arena;
    SendRing ring;
    Random random(seed);
    std::deque<std::uint8_t> model;
    std::uint64_t begin = 0;
    for (int step = 0; step < 500; step++) {
      if (random.chance(50)) {
        const auto value = static_cast<std::uint8_t>(step);
        const std::size_t given = write(ring, *arena, random.between(1, 9000), value);
        model.insert(model.end(), given, value);
      } else {
        const std::uint32_t gone = random.below(static_cast<std::uint32_t>(model.size()) + 1);
        ring.advance(*arena, begin += gone);
        model.erase(model.begin(), model.begin() + gone);
      }
      ASSERT_EQ(ring.size(), model.size());
      ASSERT_LE(ring.size(), kLimit);
      if (model.empty()) continue;
      const std::uint32_t at = random.below(static_cast<std::uint32_t>(model.size()));
      const std::uint32_t length = random.between(1, static_cast<std::uint32_t>(model.size()) - at);
      std::size_t i = at;
      std::size_t wrong = 0;
      for (const auto& part : ring.spans(begin + at, length).part)
        for (std::byte b : part) wrong += b != std::byte{model[i++]};
      ASSERT_EQ(wrong, 0U);
      ASSERT_EQ(i, at + length);
    }
    ring.clear(*arena);
  }
}

}  // namespace
}  // namespace bypass::tcp
