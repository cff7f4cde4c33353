// FlowTable: from a segment's addresses and ports to its connection or TIME_WAIT. An index: chains of
// nodes that lie in the objects themselves, rebuilt from the slabs after a death.
//
// The hash is keyed, so that a peer that chooses its ports cannot choose its bucket.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/address.h"
#include "stack/memory/memory.h"

namespace bypass::tcp {

struct FlowKey {
  IpAddress local, remote;
  std::uint16_t local_port = 0, remote_port = 0;
  bool operator==(const FlowKey&) const = default;
};

enum class FlowKind : std::uint8_t { kTcb, kTimeWait };

/// In a Tcb or a TimeWait, which hold the addresses.
struct FlowNode {
  FlowNode* next = nullptr;
  std::uint32_t hash = 0;
  std::uint16_t local_port = 0, remote_port = 0;
  FlowKind kind = FlowKind::kTcb;
};

class FlowTable {
 public:
  static constexpr std::size_t kFirstBuckets = 512;

  /// False when the memory has no room for the first buckets.
  [[nodiscard]] bool create(Memory& memory, std::uint64_t seed0, std::uint64_t seed1);

  [[nodiscard]] std::uint32_t hash(const IpAddress& local, const IpAddress& remote, std::uint16_t local_port,
                                   std::uint16_t remote_port) const {
    std::uint64_t l[2], r[2];
    static_assert(sizeof l == sizeof(IpAddress));
    __builtin_memcpy(l, &local, sizeof l);
    __builtin_memcpy(r, &remote, sizeof r);
    const std::uint64_t ports = (std::uint64_t{local_port} << 16) | remote_port;
    const std::uint64_t a = fold(r[1] ^ seed_[0], l[1] ^ seed_[1]);
    return static_cast<std::uint32_t>(fold(a ^ ports, (r[0] ^ (l[0] << 1)) + seed_[1]));
  }
  [[nodiscard]] std::uint32_t hash(const FlowKey& k) const {
    return hash(k.local, k.remote, k.local_port, k.remote_port);
  }
  void prefetch_bucket(std::uint32_t h) const { __builtin_prefetch(&buckets_[h & mask_]); }
  void prefetch_first(std::uint32_t h) const {
    const FlowNode* node = buckets_[h & mask_];
    if (node == nullptr) return;
    const auto* line = reinterpret_cast<const char*>(node);
    __builtin_prefetch(line);
    __builtin_prefetch(line + 64);
    __builtin_prefetch(line + 128);
  }

  [[nodiscard]] FlowNode* find(const FlowKey& key, std::uint32_t h) const;
  void insert(Memory& memory, FlowNode& node, const FlowKey& key);
  void erase(FlowNode& node);
  [[nodiscard]] std::size_t size() const { return size_; }

  /// To be called after a death, between Memory's begin_rebuild() and finish_rebuild(): forgets all nodes. Keeps the
  /// buckets, or takes new ones if the old block is lost. False: there is no memory for new ones.
  [[nodiscard]] bool rebuild(Memory& memory);
  [[nodiscard]] const void* block() const { return buckets_; }

 private:
  static std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  [[nodiscard]] bool take_first_block(Memory& memory);
  void clear();
  void grow(Memory& memory);

  FlowNode** buckets_ = nullptr;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
  std::uint64_t seed_[2]{};
};

}  // namespace bypass::tcp
