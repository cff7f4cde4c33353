// RcLink: a link over one RC queue pair.
//
// A message is an RDMA write with immediate, every other write a plain RDMA write; RC keeps their order. Small writes
// travel inside their request. Every kSignalEvery-th request asks for a completion, and so does the last request of a
// lane. Messages are `solicited`, so that a sleeper wakes for them and not for its own completions. The exceptions: the
// send queue is full, or a lane waits for its last completion.
//
// When the queue pair fails, or is made to fail, all posted requests are flushed. What was completed before lies in
// front in the completion queue, and counts. The link is drained when all receives have come back, and also the last
// request to send, which is posted for this purpose. Until then buffers may still be read and the memory written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/verbs/rc/queue_pair.h"
#include "backends/verbs/rc/send_memory.h"
#include "fastpath/link/link.h"

namespace bypass::verbs {

class RcLink final : public fastpath::Link {
 public:
  static constexpr std::uint32_t kSignalEvery = 32;
  /// After this many requests, a sender that does not poll looks at the device all the same. While it only writes,
  /// acknowledgements and credits would lie there until its queue was full.
  static constexpr std::uint32_t kLookEvery = 16;
  /// After this many bytes it looks, too. So it sees the room in a large ring again long before the ring is full.
  static constexpr std::uint64_t kLookEveryBytes = 64U << 10;

  /// `memory`: the peer writes into it.
  RcLink(const RcContext& context, const SendMemory& buffers, std::span<std::byte> memory)
      : context_(context), buffers_(buffers), memory_(memory), pair_(context) {}

  // --- The device's own thread, before anything below. 0 or an errno.
  int make(std::uint32_t window, std::uint64_t random);
  int connect(const fastpath::RcEnd& peer, std::uint32_t psn);
  void destroy() { pair_.destroy(); }

  /// Writes as many bytes as a packet carries at most, before the first lane. They go from where lanes' rings will be
  /// at this end to where they will be at the peer's. They are zeros, or what the peer has written there. (A lane's
  /// largest packet is longer by the four bytes of its immediate.)
  void post_full_packet();

  // --- The holder of the shard's lock
  [[nodiscard]] fastpath::LinkState state() const override;
  [[nodiscard]] std::size_t room() const override;
  void post(std::span<const fastpath::Write> batch) override;
  std::size_t poll(std::span<fastpath::Arrival> out) override;
  bool arm() override;
  [[nodiscard]] int wait_descriptor() const override { return pair_.channel(); }
  void fail() override;
  [[nodiscard]] std::span<const std::byte> memory() const override { return memory_; }
  /// For a device that will not say any more what became of the requests. The queue pair is destroyed, and what was not
  /// polled until then does not count.
  void give_up();

  [[nodiscard]] const RcQueuePair& pair() const { return pair_; }

 private:
  static constexpr std::size_t kBurst = 32;
  static constexpr std::size_t kMostPacketBytes = 4096;  // InfiniBand's and RoCE's largest MTU
  static constexpr std::uint64_t kReceive = ~std::uint64_t{0}, kLast = kReceive - 1;
  // The number of a request to send: how many were posted up to it and, in the bits above, the number + 1 of the lane
  // whose last request it is.
  static constexpr unsigned kLaneShift = 48;
  static constexpr std::uint64_t kPostedMask = (std::uint64_t{1} << kLaneShift) - 1;

  std::size_t post_some(std::span<const fastpath::Write> batch);
  bool build(const fastpath::Write& write, std::size_t i);
  [[nodiscard]] std::size_t describe(const fastpath::Write& write, std::span<ibv_sge> out, bool inside) const;
  bool post_last();
  void refill();
  void on_receive(const ibv_wc& wc, std::span<fastpath::Arrival> out, std::size_t& n);
  void on_sent(const ibv_wc& wc, std::span<fastpath::Arrival> out, std::size_t& n);
  std::size_t take_completions(std::span<fastpath::Arrival> out, bool& more);
  std::size_t take_stash(std::span<fastpath::Arrival> out);
  void look();
  void finish_giving_up();

  const RcContext& context_;
  const SendMemory& buffers_;
  std::span<std::byte> memory_;
  RcQueuePair pair_;
  std::uint64_t remote_ = 0;  // the address of the peer's memory
  std::uint64_t remote_bytes_ = 0;
  std::uint32_t remote_key_ = 0;
  std::uint32_t inline_bytes_ = 0;
  std::uint32_t depth_ = 0;                   // the length of the send queue, without the room for the last request
  std::uint64_t posted_ = 0, completed_ = 0;  // counts of requests to send
  std::uint64_t looked_ = 0;                  // the value of posted_ at the last look at the device
  std::uint64_t unlooked_bytes_ = 0;          // bytes posted since the last look
  std::uint32_t unsignalled_ = 0;
  std::uint32_t last_writes_ = 0;                     // last requests of lanes that are not completed yet
  std::uint32_t wanted_receives_ = 0, receives_ = 0;  // how many are wanted, and how many are posted
  enum class Armed : std::uint8_t { kNo, kMessages, kAll } armed_ = Armed::kNo;
  bool failed_ = false;
  bool last_done_ = false;
  bool giving_up_ = false;
  bool gone_ = false;
  // Completions that look() has found
  std::array<fastpath::Arrival, kBurst> stash_{};
  std::size_t stashed_ = 0, unstashed_ = 0;
  // The requests as they are posted
  std::array<ibv_send_wr, kBurst> requests_{};
  std::array<std::array<ibv_sge, RcQueuePair::kMostPieces>, kBurst> pieces_{};
};

}  // namespace bypass::verbs
