// ShmLink: a link over memory that two processes of one host share. Each direction is a ring (ring.h). In the ring,
// writes follow each other, each with the data that a device would be given.
//
//   to:64 length:31 notify:1 immediate:32, then the bytes, then padding to a multiple of 16
//
// post() copies a write into the ring. poll() copies it out into the memory that the peer may write, and nowhere else.
// The offset and length are read once and checked against that memory, as a device checks them against a key. So a peer
// can overwrite all that is shared, and still reaches nothing beyond what it may write anyway. A peer that breaks the
// ring ends the link.
//
// A batch is published by one store that the peer looks for. It costs a system call only if the peer has said that it
// sleeps. The channel beside the ring carries the wake-up; the channel's end is the peer's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/link/link.h"
#include "fastpath/link/link_end.h"
#include "fastpath/shm/rendezvous/channel.h"
#include "fastpath/shm/ring.h"
#include "fastpath/shm/segment.h"

namespace bypass::fastpath::shm {

class ShmLink final : public Link {
 public:
  static constexpr std::uint64_t kMostWrite = LinkEnd::kQuantum;
  /// Bytes of each direction's ring. A full batch of the largest writes takes half of it.
  static constexpr std::uint64_t kRing = std::uint64_t{1} << 20;

  /// `memory` is what the peer writes.
  explicit ShmLink(std::span<std::byte> memory) : memory_(memory) {}
  /// To be called once, when the peer has the segment, or is sent it.
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

  /// Checks whether the peer has gone, by one system call. While both ends poll, nothing else reports that.
  void look();
  /// What was not polled until now does not count.
  void give_up();
  /// In a forked child whose copies of our descriptors are closed already: the link is the parent's.
  void abandon();

 private:
  /// The head of a write in the ring.
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
  /// A batch may find no room until so much is free.
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
  mutable Producer producer_;  // mutable because room() reads the peer's index
  Consumer consumer_;
  std::uint64_t rest_ = 0;      // after the link has failed: bytes that came before
  mutable bool short_ = false;  // the last room() found too little
  bool failed_ = false;
};

}  // namespace bypass::fastpath::shm
