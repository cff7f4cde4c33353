// FramePool: the buffers of one port, a plain LIFO that hands out the most recently used one first. Only the holder of
// the shard's lock uses it.
//
// An element is  Packet (128 bytes) | headroom 128 | data room.  The whole budget is address space from the start; a
// buffer takes memory when it is first used. The mapping is shared with forked children, which may read there what was
// received before the fork.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backends/packet/frames/frame_memory.h"
#include "stack/frame/packet.h"

namespace bypass::packet {

/// The bytes of one element (the Packet's room, the buffer, and padding), and of its buffer.
struct FrameLayout {
  std::uint32_t element, buffer;
};

class FramePool {
 public:
  /// The room for the Packet's header. The buffer follows it.
  static constexpr std::uint32_t kPacketRoom = 128;
  static_assert(sizeof(Packet) <= kPacketRoom);
  /// Large frames come in pieces of 8 KiB: each piece costs a header's cache lines, and a small frame touches only its
  /// buffer's first page. The element is an odd number of cache lines, so that the headers do not all fall into one set
  /// of the cache.
  static constexpr std::uint32_t kLargeRoom = 8192;
  static constexpr FrameLayout kLarge{kPacketRoom + kTxHeadroom + kLargeRoom + 64, kTxHeadroom + kLargeRoom};
  static_assert(kLarge.element / 64 % 2 == 1);
  /// One element a page, as AF_XDP's chunks are.
  static constexpr FrameLayout kPaged{4096, 4096 - kPacketRoom};

  FramePool() = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  ~FramePool();

  /// kAuto: huge pages if there are enough. False: `problem` says why.
  bool create(const FrameLayout& layout, std::size_t budget_bytes, std::uint16_t port_index, Hugepages pages,
              std::string& problem);

  /// An empty frame, reset() to kTxHeadroom. Null: none is left.
  Packet* take();
  std::size_t alloc(std::span<Packet*> out);
  /// Frees a head with its segments.
  void free_frame(Packet* head);
  /// A frame of one or more buffers with a copy of these bytes. Null: the pool ran dry, which is counted.
  Packet* copy_in(std::span<const std::byte> bytes);

  /// All elements, one after the other, in whole pages.
  [[nodiscard]] std::span<std::byte> memory() const { return mapped_.all(); }
  [[nodiscard]] std::uint32_t buffer_bytes() const { return layout_.buffer; }
  [[nodiscard]] std::uint32_t total() const { return total_; }
  [[nodiscard]] std::uint32_t free_count() const { return free_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t ran_dry() const { return ran_dry_.load(std::memory_order_relaxed); }

 private:
  Packet* make_fresh();
  void count_free(std::int32_t change) {
    free_.store(free_.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(change), std::memory_order_relaxed);
  }

  FrameLayout layout_{};
  FrameMemory mapped_;
  std::byte* memory_ = nullptr;
  std::uint32_t total_ = 0;
  std::uint32_t fresh_ = 0;  // elements from this index on have never been used
  std::uint32_t stacked_ = 0;
  std::unique_ptr<Packet*[]> stack_;
  std::uint16_t port_index_ = 0;
  std::atomic<std::uint32_t> free_{0};  // written by the holder of the shard's lock, read by any thread
  std::atomic<std::uint64_t> ran_dry_{0};
};

}  // namespace bypass::packet
