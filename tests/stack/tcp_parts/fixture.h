// What the tests of TCP's parts share: an arena, frames with payload, a seeded generator.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "stack/frame/packet.h"
#include "stack/memory/memory.h"
#include "stack/tcp/seq.h"

namespace bypass::tcp {

/// A Memory in a buffer of its own. Blocks that are still out at its end fail the test.
class Arena {
 public:
  explicit Arena(std::size_t region = 8U << 20, std::size_t budget = 8U << 20)
      : base_(std::aligned_alloc(4096, region)), memory_(Memory::create(base_, region, budget)) {
    clean_ = memory_->stats().used_bytes;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    EXPECT_EQ(used(), 0U) << "blocks leaked";
    std::free(base_);
  }
  Memory& operator*() { return *memory_; }
  [[nodiscard]] std::size_t used() const { return memory_->stats().used_bytes - clean_; }

 private:
  void* base_;
  Memory* memory_;
  std::size_t clean_ = 0;
};

/// Frames whose payload byte at sequence number s is pattern(s); counts those not given back.
class FramePool {
 public:
  static std::uint8_t pattern(SeqNum s) { return static_cast<std::uint8_t>(s.v * 167 + (s.v >> 8)); }

  Packet* make(SeqNum begin, std::uint32_t length, std::uint32_t offset = 54) {
    auto owned = std::make_unique<Owned>();
    owned->bytes.resize(offset + length);
    for (std::uint32_t i = 0; i < length; i++) owned->bytes[offset + i] = std::byte{pattern(begin + i)};
    owned->packet.buffer = owned->packet.data = owned->bytes.data();
    owned->packet.capacity = owned->packet.len = owned->packet.frame_len = offset + length;
    owned->packet.seq = begin.v;
    owned->packet.offset = offset;
    owned->packet.payload_len = length;
    out_++;
    frames_.push_back(std::move(owned));
    return &frames_.back()->packet;
  }
  void release(Packet* list) {
    while (list != nullptr) {
      Packet* next = list->queue_next;
      EXPECT_EQ(list->scratch[0], 0U) << "given back twice";
      list->scratch[0] = 1;
      out_--;
      list = next;
    }
  }
  [[nodiscard]] std::size_t out() const { return out_; }

 private:
  struct Owned {
    Packet packet{};
    std::vector<std::byte> bytes;
  };
  std::vector<std::unique_ptr<Owned>> frames_;
  std::size_t out_ = 0;
};

/// Equal runs for equal seeds, on every machine (std::uniform_int_distribution promises none).
class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(engine_() % bound); }
  std::uint32_t between(std::uint32_t first, std::uint32_t last) { return first + below(last - first + 1); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

 private:
  std::mt19937 engine_;
};

}  // namespace bypass::tcp
