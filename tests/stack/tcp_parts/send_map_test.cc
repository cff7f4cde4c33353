// SendMap against a model: a string with what each position holds.
#include "stack/tcp/output/send_map.h"

#include <string>

#include "stack/tcp_parts/fixture.h"

namespace bypass::tcp {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// A ring whose bytes are a pattern of their offsets.
class Ring {
 public:
  explicit Ring(Memory& memory) : memory_(memory) {}
  ~Ring() { ring.clear(memory_); }
  static char at(std::uint64_t offset) { return static_cast<char>('a' + offset % 26); }
  bool write(std::size_t bytes) {
    auto room = ring.reserve(memory_, bytes, 1U << 20);
    if (!room.ok() || room->size() < bytes) {
      if (room.ok()) ring.commit(memory_, 0);
      return false;
    }
    for (auto& part : room->part)
      for (std::byte& b : part) b = static_cast<std::byte>(at(written++));
    written = ring.end() + bytes;
    ring.commit(memory_, bytes);
    return true;
  }
  SendRing ring;
  std::uint64_t written = 0;

 private:
  Memory& memory_;
};

std::string read(const SendMap& map, const SendRing& ring, std::uint64_t position, std::size_t length) {
  std::string text;
  while (text.size() < length) {
    std::span<const std::byte> pieces[8];
    std::size_t covered = 0, sum = 0;
    const std::size_t n = map.pieces(ring, position + text.size(), length - text.size(), pieces, covered);
    for (std::size_t i = 0; i < n; i++) {
      text.append(reinterpret_cast<const char*>(pieces[i].data()), pieces[i].size());
      sum += pieces[i].size();
    }
    EXPECT_EQ(sum, covered);
    if (sum == 0) break;
  }
  return text;
}

TEST(SendMap, RecordsAndRanges_AreReadInOrder) {
  Arena arena;
  Ring r(*arena);
  SendMap map;
  ASSERT_TRUE(r.write(100));
  ASSERT_TRUE(map.prepare(*arena, 8));
  map.append(bytes_of("<HEADER>"));
  map.append_ring(0, 10);
  ASSERT_TRUE(map.prepare(*arena, 4));
  map.append(bytes_of("ctrl"));
  map.append(bytes_of("more"));
  map.append_ring(20, 5);  // the bytes in between went another way
  EXPECT_EQ(map.end(), 31U);
  EXPECT_EQ(read(map, r.ring, 0, 31), "<HEADER>abcdefghijctrlmoreuvwxy");
  EXPECT_EQ(read(map, r.ring, 5, 20), "ER>abcdefghijctrlmor");
  EXPECT_EQ(map.run(0), 18U);
  EXPECT_EQ(map.own_bytes(6, 10), 2U);
  EXPECT_FALSE(map.has_ring_bytes(18, 8));
  EXPECT_TRUE(map.has_ring_bytes(18, 9));
  map.advance(*arena, 17);
  EXPECT_EQ(map.acknowledged(), 9U);
  map.advance(*arena, 24);
  EXPECT_EQ(map.acknowledged(), 10U);
  EXPECT_EQ(read(map, r.ring, 25, 6), "euvwxy");
  map.advance(*arena, 31);
  EXPECT_EQ(map.acknowledged(), 25U);
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.chunks_block(), nullptr);
}

TEST(SendMap, RangesThatFollowEachOther_AreOneChunk) {
  Arena arena;
  Ring r(*arena);
  SendMap map;
  for (int i = 0; i < 5000; i++) {
    ASSERT_TRUE(r.write(3));
    ASSERT_TRUE(map.prepare(*arena, 0));
    map.append_ring(static_cast<std::uint64_t>(3 * i), 3);
  }
  EXPECT_EQ(map.run(0), 15000U);
  EXPECT_EQ(map.violated(r.ring), nullptr);
  map.clear(*arena);
}

TEST(SendMap, Limits_AreKept) {
  Arena arena;
  Ring r(*arena);
  ASSERT_TRUE(r.write(10'000));
  SendMap map;
  std::uint32_t records = 0;
  for (; map.prepare(*arena, 1); records++) {
    map.append(bytes_of("h"));
    map.append_ring(2 * records, 1);
    ASSERT_LE(records, SendMap::kMostChunks);
  }
  EXPECT_EQ(records, SendMap::kMostChunks);
  map.advance(*arena, 2);
  EXPECT_TRUE(map.prepare(*arena, 1)) << "one place is free";
  map.clear(*arena);

  const std::string large(4096, 'x');
  std::size_t own = 0;
  for (; map.prepare(*arena, 4096); own += large.size()) map.append(bytes_of(large));
  EXPECT_EQ(own, SendMap::kMostOwn);
  map.clear(*arena);
}

TEST(SendMap, NoMemory_FailsBeforeAnythingIsAppended) {
  Arena arena(1U << 20, 4096);
  SendMap map;
  std::size_t appended = 0;
  for (; map.prepare(*arena, 200); appended += 200) map.append(bytes_of(std::string(200, 'y')));
  EXPECT_EQ(map.end(), appended);
  EXPECT_EQ(map.violated(SendRing{}), nullptr);
  map.clear(*arena);
}

TEST(SendMap, RandomSteps_AgreeWithTheModel) {
  for (std::uint32_t seed = 1; seed <= 100; seed++) {
    Random random(seed);
    Arena arena;
    Ring r(*arena);
    SendMap map;
    std::string model;
    std::uint64_t una = 0, source = 0, released = 0;
    for (int step = 0; step < 300; step++) {
      (void)r.write(random.below(60));
      const std::uint32_t own = random.below(5) == 0 ? random.below(300) : random.below(9);
      if (map.prepare(*arena, own)) {
        std::string header(own, '#');
        for (char& c : header) c = static_cast<char>('A' + random.below(26));
        if (own != 0) map.append(bytes_of(header));
        model += header;
        if (random.below(4) == 0) source += random.below(static_cast<std::uint32_t>(r.ring.end() - source) + 1);
        const std::uint64_t bytes = random.below(static_cast<std::uint32_t>(r.ring.end() - source) + 1);
        if (bytes != 0) map.append_ring(source, bytes);
        for (std::uint64_t i = 0; i < bytes; i++) model += Ring::at(source + i);
        source += bytes;
      }
      ASSERT_EQ(map.end(), model.size()) << seed;
      una += random.below(static_cast<std::uint32_t>(model.size() - una) + 1) / 2;
      map.advance(*arena, una);
      if (released < map.acknowledged()) r.ring.advance(*arena, released = map.acknowledged());
      ASSERT_EQ(map.violated(r.ring), nullptr) << seed;
      if (una == model.size()) continue;
      const auto at = una + random.below(static_cast<std::uint32_t>(model.size() - una));
      const auto length = 1 + random.below(static_cast<std::uint32_t>(model.size() - at));
      ASSERT_EQ(read(map, r.ring, at, length), model.substr(at, length)) << seed;
    }
    map.clear(*arena);
  }
}

}  // namespace
}  // namespace bypass::tcp
