// ShmLink: a link over memory that two processes of one host share: a ring a direction (ring.h), in which writes lie
// one behind the other, each with what a device would be told of it.
//
//   to:64 length:31 notify:1 immediate:32, then the bytes, then as many as make a multiple of 16
//
// post() copies a write into the ring, poll() copies it out into the memory that the peer may write, and to nowhere
// else: the offset and the length are read once and held against that memory as a device holds them against a key. So
// the peer can scribble over all that is shared, and reaches nothing beyond what it may write anyway; what breaks the
// ring ends the link.
//
// A batch is one store that the peer looks for, and costs a system call only where the peer has said that it sleeps.
// The channel beside it wakes, and its end is the peer's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/link/link.h"
#include "fastpath/link/link_end.h"
#include "fastpath/shm/channel.h"
#include "fastpath/shm/ring.h"
#include "fastpath/shm/segment.h"

namespace bypass::fastpath::shm {

class ShmLink final : public Link {
 public:
  static constexpr std::uint64_t kMostWrite = LinkEnd::kQuantum;
  /// Of each direction. A full batch of the largest writes takes half of it.
  static constexpr std::uint64_t kRing = std::uint64_t{1} << 20;

  /// `memory` is what the peer writes.
  explicit ShmLink(std::span<std::byte> memory) : memory_(memory) {}
  /// Once, when the peer has the segment, or is sent it.
  void open(Segment segment, Channel channel);
  [[nodiscard]] bool is_open() const { return segment_.is_mapped(); }

  [[nodiscard]] LinkState state() const override;
  [[nodiscard]] std::size_t room() const override;
  void post(std::span<const Write> batch) override;
  [[nodiscard]] bool reads_later() const override { return false; }
  std::size_t poll(std::span<Arrival> out) override;
  bool arm() override;
  [[nodiscard]] int wait_descriptor() const override { return channel_.descriptor(); }
  void fail() override;
  [[nodiscard]] std::span<const std::byte> memory() const override { return memory_; }

  /// Whether the peer has gone: one system call. While both ends poll nothing else tells.
  void look();
  /// What was not polled until now does not count.
  void give_up();
  /// In a forked child whose copies of our descriptors are closed already: the link is the parent's.
  void abandon();

 private:
  /// Of a write in the ring.
  struct Header {
    std::uint64_t to = 0;
    std::uint32_t length = 0;  // its highest bit: notify
    std::uint32_t immediate = 0;
  };
  static constexpr std::uint32_t kNotify = 1U << 31;
  static constexpr std::uint64_t kAlign = sizeof(Header);
  static constexpr std::uint64_t slot_bytes(std::uint64_t length) {
    return sizeof(Header) + (length + kAlign - 1) / kAlign * kAlign;
  }
  /// Until so much is free a batch may find no room.
  static constexpr std::uint64_t kPlenty = LinkEnd::kBatch * (sizeof(Header) + kMostWrite);
  static_assert(kPlenty <= kRing / 4 * 3, "what Producer::arm() may ask for");
  static_assert(sizeof(Header) == 16 && kMostWrite % kAlign == 0 && kMostWrite < kNotify);

  void take_wakes();
  void end(bool take_rest);
  bool take(const Parts<const std::byte>& there, std::uint64_t at, std::uint64_t limit, Header& header);

  std::span<std::byte> memory_;
  Segment segment_;
  Channel channel_;
  RingView out_, in_;
  mutable Producer producer_;  // room() looks at the peer's index
  Consumer consumer_;
  std::uint64_t rest_ = 0;      // once it has failed: bytes that came before
  mutable bool short_ = false;  // of room, when last asked
  bool failed_ = false;
};

}  // namespace bypass::fastpath::shm
