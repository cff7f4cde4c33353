// What the stack's parts cost a packet: micro-benchmarks (Google Benchmark) of what runs for each segment, and of
// the worst that a hostile peer can make them do. Single thread, warm caches; compare runs of one machine only.
//
//   build/bin/stack_bench --benchmark_filter=Reassembly
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "stack/frame/checksum.h"
#include "stack/memory/memory.h"
#include "stack/tcp/congestion/congestion.h"
#include "stack/tcp/input/options.h"
#include "stack/tcp/input/reassembly.h"
#include "stack/tcp/open/isn.h"
#include "stack/tcp/output/sack_scoreboard.h"
#include "stack/tcp/output/send_ring.h"

namespace bypass::tcp {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kMss = 1448;

class Arena {
 public:
  Arena() : base_(std::aligned_alloc(4096, kBytes)), memory_(Memory::create(base_, kBytes, kBytes)) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { std::free(base_); }
  Memory& operator*() { return *memory_; }

 private:
  static constexpr std::size_t kBytes = 64U << 20;
  void* base_;
  Memory* memory_;
};

// --- Checksum

void Checksum(benchmark::State& state) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(state.range(0)), std::byte{0x5a});
  for (auto _ : state) benchmark::DoNotOptimize(checksum(bytes.data(), bytes.size()).value);
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Checksum)->Arg(20)->Arg(64)->Arg(1460)->Arg(65536);

void ChecksumWhileCopying(benchmark::State& state) {
  std::vector<std::byte> from(static_cast<std::size_t>(state.range(0)), std::byte{0x5a}), to(from.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(copy_checksum(to.data(), from.data(), from.size()).value);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(ChecksumWhileCopying)->Arg(64)->Arg(1460)->Arg(65536);

// --- Options

void OptionsOfAnEstablishedConnection(benchmark::State& state) {
  std::array<std::byte, kTimestampsBytes> list;
  write_timestamps(list.data(), 1, 2);
  for (auto _ : state) {
    benchmark::DoNotOptimize(list.data());
    benchmark::ClobberMemory();
    benchmark::DoNotOptimize(parse_options(list)->ts_value);
  }
}
BENCHMARK(OptionsOfAnEstablishedConnection);

void OptionsWithThreeSackBlocks(benchmark::State& state) {
  std::array<std::byte, kMaxOptionBytes> list;
  const SackBlock blocks[3] = {{{1}, {2}}, {{3}, {4}}, {{5}, {6}}};
  write_timestamps(list.data(), 1, 2);
  const std::size_t used = kTimestampsBytes + write_sack(std::span(list).subspan(kTimestampsBytes), blocks);
  for (auto _ : state) {
    benchmark::ClobberMemory();
    benchmark::DoNotOptimize(parse_options(std::span(list).first(used))->sack_count);
  }
}
BENCHMARK(OptionsWithThreeSackBlocks);

void OptionsOfASynWritten(benchmark::State& state) {
  std::array<std::byte, kMaxOptionBytes> room;
  const SynOptions syn{1460, true, true, true, 7, 1, 2};
  for (auto _ : state) {
    benchmark::DoNotOptimize(write_syn_options(room, syn));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(OptionsOfASynWritten);

// --- Send ring

/// A request or an answer: it is written, sent and acknowledged, and the block is returned.
void RingWriteAndAcknowledge(benchmark::State& state) {
  Arena arena;
  SendRing ring;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> from(bytes);
  for (auto _ : state) {
    const auto room = ring.reserve(*arena, bytes, 4U << 20);
    std::memcpy(room->part[0].data(), from.data(), room->part[0].size());
    ring.commit(*arena, bytes);
    benchmark::DoNotOptimize(ring.spans(ring.begin(), bytes));
    ring.advance(*arena, ring.end());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(RingWriteAndAcknowledge)->Arg(64)->Arg(4096)->Arg(65536);

/// A bulk sender at 1 MiB in flight: 16 KiB written for each 16 KiB acknowledged.
void RingInSteadyFlow(benchmark::State& state) {
  constexpr std::size_t kWrite = 16384;
  Arena arena;
  SendRing ring;
  std::vector<std::byte> from(kWrite);
  const auto write = [&] {
    const auto room = ring.reserve(*arena, kWrite, 4U << 20);
    std::memcpy(room->part[0].data(), from.data(), room->part[0].size());
    std::memcpy(room->part[1].data(), from.data(), room->part[1].size());
    ring.commit(*arena, kWrite);
  };
  while (ring.size() < 1U << 20) write();
  for (auto _ : state) {
    write();
    ring.advance(*arena, ring.begin() + kWrite);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kWrite));
  ring.clear(*arena);
}
BENCHMARK(RingInSteadyFlow);

// --- Reassembly

struct Frames {
  explicit Frames(std::size_t count) : packets(count) {}
  Packet* at(std::size_t i, SeqNum begin, std::uint32_t length) {
    Packet& frame = packets[i];
    frame.seq = begin.v;
    frame.offset = 66;
    frame.payload_len = length;
    return &frame;
  }
  std::vector<Packet> packets;
};
constexpr Reassembly::Limits kNoLimits{1U << 30, 1U << 30};

/// One lost segment, then a flight behind it, then the segment: per frame.
void ReassemblyBehindOneHole(benchmark::State& state) {
  const auto flight = static_cast<std::uint32_t>(state.range(0));
  Arena arena;
  Reassembly queue;
  Frames frames(flight);
  for (auto _ : state) {
    for (std::uint32_t i = 0; i < flight; i++)
      queue.insert(*arena, frames.at(i, SeqNum{(i + 1) * kMss}, kMss), kNoLimits);
    benchmark::DoNotOptimize(queue.advance(*arena, SeqNum{kMss}).bytes);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(ReassemblyBehindOneHole)->Arg(10)->Arg(1000);

/// The array of islands is full. Each new frame lies between two of them and touches none. It is refused after the
/// whole scan.
void ReassemblyUnderAttack(benchmark::State& state) {
  Arena arena;
  Reassembly queue;
  Frames frames(Reassembly::kMaxIslands + 1);
  for (std::uint32_t i = 0; i < Reassembly::kMaxIslands; i++)
    queue.insert(*arena, frames.at(i, SeqNum{100 * (i + 1)}, 1), kNoLimits);
  constexpr std::uint32_t kGaps = Reassembly::kMaxIslands - 1;
  std::uint32_t n = 0;
  for (auto _ : state) {
    const SeqNum between{150 + 100 * (n++ % kGaps)};
    benchmark::DoNotOptimize(queue.insert(*arena, frames.at(Reassembly::kMaxIslands, between, 1), kNoLimits).release);
    std::array<SackBlock, 3> blocks;
    benchmark::DoNotOptimize(queue.take_sack_blocks(blocks));
  }
  queue.clear(*arena);
}
BENCHMARK(ReassemblyUnderAttack);

// --- Sending side

void ScoreboardAckWithoutLoss(benchmark::State& state) {
  Arena arena;
  Scoreboard board;
  SeqNum una{};
  board.start(una, true);
  for (auto _ : state) {
    board.on_sent(una, kMss);
    una += kMss;
    benchmark::DoNotOptimize(board.on_ack(*arena, una, una, {}, false, kMss).delivered);
  }
}
BENCHMARK(ScoreboardAckWithoutLoss);

/// Each ACK brings a new range until the array is full, in the worst case at its front. The time is per ACK.
void ScoreboardUnderAttack(benchmark::State& state) {
  Arena arena;
  Scoreboard board;
  for (auto _ : state) {
    board.start(SeqNum{}, true);
    board.on_sent(SeqNum{}, 1U << 20);
    for (std::uint32_t i = Scoreboard::kMaxRanges; i != 0; i--) {
      const SackBlock block{{10 * i}, {10 * i + 1}};
      benchmark::DoNotOptimize(board.on_ack(*arena, SeqNum{}, SeqNum{1U << 20}, {&block, 1}, true, kMss).newly_sacked);
    }
    board.clear(*arena);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(Scoreboard::kMaxRanges));
}
BENCHMARK(ScoreboardUnderAttack);

void CubicAck(benchmark::State& state) {
  CongestionControl cc;
  cc.start(Congestion::kCubic, kMss, 100);
  Instant now{1s};
  cc.on_loss_event(now, cc.cwnd());
  for (auto _ : state) {
    now += 10us;
    cc.on_ack({.now = now, .acked = kMss, .flight = cc.cwnd(), .srtt = 1ms});
    benchmark::DoNotOptimize(cc.cwnd());
  }
}
BENCHMARK(CubicAck);

void InitialSequenceNumber(benchmark::State& state) {
  const Secret secret{1, 2};
  Endpoint local{IpAddress::from_v4(0x0a090001), 6379}, remote{IpAddress::from_v4(0x0a090002), 0};
  for (auto _ : state) {
    remote.port++;
    benchmark::DoNotOptimize(initial_sequence(secret, local, remote, Instant{1s}));
  }
}
BENCHMARK(InitialSequenceNumber);

}  // namespace
}  // namespace bypass::tcp

BENCHMARK_MAIN();
