// Keys of registered memory: nobody can guess one from another, and an old key names nothing.
#include "softverbs/engine/memory_table.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <vector>

namespace bypass::rdma {
namespace {

constexpr unsigned kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

class MemoryTableTest : public testing::Test {
 protected:
  Mr* add(std::uint64_t iova = 0x1000) { return table_.add({&pd_, bytes_.data(), bytes_.size(), iova, kAll, 0}); }
  std::byte* find(std::uint32_t key, std::uint64_t at = 0x1000, std::uint64_t length = 1, unsigned access = kAll) {
    return table_.find(pd_, key, at, length, access);
  }

  Pd pd_, other_;
  std::vector<std::byte> bytes_{4096};
  MemoryTable table_{1000, {1, 2}};
};

TEST_F(MemoryTableTest, Key_NamesItsBytes_AndNoMore) {
  const std::uint32_t key = add()->key;
  EXPECT_EQ(find(key), bytes_.data());
  EXPECT_EQ(find(key, 0x1000 + 4095), &bytes_[4095]);
  EXPECT_EQ(find(key, 0x1000, 4096), bytes_.data());
  EXPECT_EQ(find(key, 0x1000, 4097), nullptr);
  EXPECT_EQ(find(key, 0xfff), nullptr);
  EXPECT_EQ(find(key, 0x1001, ~std::uint64_t{0}), nullptr);
  EXPECT_EQ(find(key, 0x1000, 1, IBV_ACCESS_REMOTE_READ), nullptr);
  EXPECT_EQ(table_.find(other_, key, 0x1000, 1, kAll), nullptr);
}

TEST_F(MemoryTableTest, KeyOfARegionThatIsGone_NamesNothing) {
  Mr* region = add();
  const std::uint32_t key = region->key;
  table_.remove(*region);
  EXPECT_EQ(find(key), nullptr);
  EXPECT_NE(add()->key, key);
  EXPECT_EQ(find(key), nullptr);
  EXPECT_EQ(find(0), nullptr);
}

TEST_F(MemoryTableTest, Rekeyed_TheOldKeyIsVoid) {
  Mr* const region = add();
  const std::uint32_t key = region->key;
  table_.rekey(*region);
  EXPECT_EQ(find(key), nullptr);
  EXPECT_EQ(find(region->key), bytes_.data());
}

TEST_F(MemoryTableTest, Full) {
  std::vector<Mr*> all;
  for (int i = 0; i < 1000; i++) all.push_back(add());
  EXPECT_EQ(add(), nullptr);
  table_.remove(*all[500]);
  EXPECT_NE(add(), nullptr);
  EXPECT_EQ(add(), nullptr);
}

// Added and removed in any order, each key finds its own region.
TEST_F(MemoryTableTest, ManyComeAndGo_EachIsFound) {
  std::vector<Mr*> live;
  std::vector<std::uint32_t> dead;
  std::uint64_t state = 1;
  for (unsigned round = 0; round < 3000; round++) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::size_t pick = live.empty() ? 0 : (state >> 33) % live.size();
    if (live.size() < 200 && (live.empty() || (state >> 60) < 9)) {
      live.push_back(add(std::uint64_t{round} << 20));
    } else {
      dead.push_back(live[pick]->key);
      table_.remove(*live[pick]);
      live[pick] = live.back();
      live.pop_back();
    }
    for (const Mr* each : live) ASSERT_EQ(find(each->key, each->iova), bytes_.data());
    for (const std::uint32_t key : dead) ASSERT_EQ(find(key), nullptr);
  }
}

// One key does not reveal the next one, and another device has other keys.
TEST_F(MemoryTableTest, Keys_AreUnlike) {
  MemoryTable elsewhere{1000, {1, 3}};
  std::set<std::uint32_t> seen;
  unsigned flipped = 0;
  std::uint32_t last = 0;
  for (int i = 0; i < 1000; i++) {
    const std::uint32_t key = add()->key;
    const std::uint32_t other = elsewhere.add({&pd_, bytes_.data(), bytes_.size(), 0, kAll, 0})->key;
    EXPECT_TRUE(seen.insert(key).second);
    EXPECT_NE(key, other);
    flipped += static_cast<unsigned>(std::popcount(key ^ last));
    last = key;
  }
  EXPECT_GT(flipped, 15'000U) << "half of the bits, near enough";
  EXPECT_LT(flipped, 17'000U);
}

}  // namespace
}  // namespace bypass::rdma
