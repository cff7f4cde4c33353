// Readers never see half a record. Two writers never claim the same place. Reports from many threads are all counted.
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "observe/scratch.h"

namespace bypass::observe {
namespace {

TEST(RegionThreads, Reader_SeesWholeRecords) {
  const auto slot = std::make_unique<SocketSlot>();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    SocketRecord record{};
    for (std::uint64_t i = 1; !stop.load(std::memory_order_relaxed); i++) {
      record.rx_bytes = record.tx_bytes = record.retransmits = record.tx_packets = i;
      store_record(*slot, record);
    }
  });
  int seen = 0;
  for (int i = 0; i < 20'000; i++) {
    SocketRecord record{};
    if (!load_record(*slot, record)) continue;
    seen++;
    ASSERT_TRUE(record.rx_bytes == record.tx_bytes && record.tx_bytes == record.retransmits &&
                record.retransmits == record.tx_packets);
  }
  while (seen == 0) {
    SocketRecord record{};
    seen += load_record(*slot, record) ? 1 : 0;
  }
  stop = true;
  writer.join();
}

TEST(RegionThreads, Claims_NeverMeet) {
  const RunDir dir;
  Region region;
  start(region, dir);
  constexpr int kThreads = 4;
  constexpr int kEach = 400;
  std::vector<std::vector<int>> claimed(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : claimed)
    threads.emplace_back([&region, &mine] {
      for (int i = 0; i < kEach; i++) {
        mine.push_back(region.claim_socket());
        region.release_socket(region.claim_socket());
      }
    });
  for (auto& thread : threads) thread.join();
  std::set<int> all;
  for (const auto& mine : claimed) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(all.count(-1), 0U);
}

TEST(RegionThreads, Whys_AreCountedOrSaidToBeLost) {
  const RunDir dir;
  Region region;
  start(region, dir);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&region] {
      for (int i = 0; i < 500; i++) region.why(Reason::kNoRoute, 3, 6, {{}, static_cast<std::uint16_t>(i % 10)}, "x");
    });
  for (auto& thread : threads) thread.join();
  const Snapshot s = snapshot(dir);
  EXPECT_EQ(s.whys.size(), 10U);
  std::uint64_t total = s.whys_lost;
  for (const WhyRecord& why : s.whys) total += why.count;
  EXPECT_EQ(total, 2000U);
}

TEST(RegionThreads, Remove_TakesNothingFromUnderAWriter) {
  const RunDir dir;
  Region region;
  start(region, dir);
  const int slot = region.claim_socket();
  std::atomic<int> rounds{0};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (; !stop.load(std::memory_order_relaxed); rounds++, rounds.notify_one()) region.update_socket(slot, {});
  });
  rounds.wait(0);
  region.remove();
  stop = true;
  writer.join();
  EXPECT_EQ(dir.own_file(), "");
}

}  // namespace
}  // namespace bypass::observe
