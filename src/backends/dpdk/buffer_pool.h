// BufferPool: the mbufs of one port, a mempool with a driver of our own below it: a plain LIFO.
//
// Every access comes from the holder of the shard's lock: the stack's alloc and free, and the drivers' own inside a
// burst. So the stack of free buffers needs no atomics. It hands the warmest buffer out first. The exception is the
// control thread while it opens or closes the device: for that time the pool is `shared` and takes a spin lock. The
// holder of the shard's lock flips that (DpdkPort::settle).
//
// An element is  mbuf (128 bytes) | Packet (128, the mbuf's private area) | headroom 128 | data room.
// The pool starts small and grows in chunks up to its budget: the control thread makes a chunk aside
// (grow), and the next alloc takes it in. Where cards take physical addresses, the whole budget is made at once.
#pragma once

#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_spinlock.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stack/frame/packet.h"

namespace bypass::dpdk {

inline constexpr std::uint32_t kPacketRoom = 128;
static_assert(sizeof(Packet) <= kPacketRoom);
static_assert(kTxHeadroom == RTE_PKTMBUF_HEADROOM, "drivers receive behind the headroom that senders get");

inline Packet* packet_of(rte_mbuf* m) {
  return reinterpret_cast<Packet*>(m + 1);
}
inline rte_mbuf* mbuf_of(Packet* p) {
  return reinterpret_cast<rte_mbuf*>(p) - 1;
}
inline const rte_mbuf* mbuf_of(const Packet* p) {
  return reinterpret_cast<const rte_mbuf*>(p) - 1;
}
static_assert(sizeof(rte_mbuf) == 128);

/// The free buffers; a mempool's pool_data.
struct FreeStack {
  bool shared = true;  // written by the holder of the shard's lock only
  rte_spinlock_t lock = RTE_SPINLOCK_INITIALIZER;
  std::uint32_t count = 0;
  std::uint32_t capacity = 0;
  std::uint64_t ran_dry = 0;
  std::unique_ptr<void*[]> slots;
  std::vector<void*> staged;  // of a chunk in the making; control thread only

  void put(void* const* objects, std::uint32_t n);
  bool take(void** objects, std::uint32_t n);
};

struct PoolConfig {
  std::uint32_t data_room = 2048;  // bytes of one buffer behind the headroom
  std::uint32_t initial = 1024;    // buffers made at once
  std::uint32_t chunk = 256;       // buffers of each later chunk
  std::uint32_t budget_bytes = 0;  // upper bound for all of them
};

class BufferPool {
 public:
  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// Control thread. False: `problem` says why.
  bool create(const char* name, const PoolConfig& config, std::uint16_t port_index, std::string& problem);

  // --- With the shard's lock
  std::size_t alloc(std::span<Packet*> out);
  /// Takes a chunk in that has been made since, if there is one.
  void take_in() {
    if (chunk_ready_.load(std::memory_order_acquire)) adopt_chunk();
  }
  /// There is a chunk to be taken in, or one may yet be made.
  [[nodiscard]] bool may_grow() const { return chunk_ready_.load(std::memory_order_acquire) || total() < limit(); }
  void free_frame(Packet* head);
  void set_shared(bool shared) { stack_.shared = shared; }

  // --- Control thread
  /// True when few buffers are left, the budget allows more, and no chunk waits to be taken in.
  [[nodiscard]] bool wants_growth() const;
  void grow();

  [[nodiscard]] rte_mempool* mempool() const { return pool_; }
  [[nodiscard]] std::uint32_t total() const { return total_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t free_count() const { return __atomic_load_n(&stack_.count, __ATOMIC_RELAXED); }
  [[nodiscard]] std::uint64_t ran_dry() const { return __atomic_load_n(&stack_.ran_dry, __ATOMIC_RELAXED); }
  [[nodiscard]] std::uint32_t buffer_bytes() const { return config_.data_room + RTE_PKTMBUF_HEADROOM; }
  /// Below this many free buffers the pool asks for its next chunk.
  [[nodiscard]] std::uint32_t low_mark() const { return config_.chunk; }

 private:
  bool add_chunk(std::uint32_t count);
  int lay_out(char* memory, std::size_t bytes);
  void take_all_at_once();
  void adopt_chunk();
  [[nodiscard]] std::uint32_t limit() const { return limit_.load(std::memory_order_relaxed); }

  PoolConfig config_;
  std::uint16_t port_index_ = 0;
  rte_mempool* pool_ = nullptr;
  std::atomic<std::uint32_t> limit_{0};  // buffers at most
  FreeStack stack_;
  std::atomic<std::uint32_t> total_{0};
  std::atomic<bool> chunk_ready_{false};
  std::vector<void*> chunks_;  // rte_malloc'ed
};

inline void FreeStack::put(void* const* objects, std::uint32_t n) {
  if (shared) rte_spinlock_lock(&lock);
  for (std::uint32_t i = 0; i < n; i++) slots[count + i] = objects[i];
  __atomic_store_n(&count, count + n, __ATOMIC_RELAXED);
  if (shared) rte_spinlock_unlock(&lock);
}

inline bool FreeStack::take(void** objects, std::uint32_t n) {
  if (shared) rte_spinlock_lock(&lock);
  const bool enough = count >= n;
  if (enough) {
    for (std::uint32_t i = 0; i < n; i++) objects[i] = slots[count - 1 - i];
    __atomic_store_n(&count, count - n, __ATOMIC_RELAXED);
  } else {
    ran_dry++;
  }
  if (shared) rte_spinlock_unlock(&lock);
  return enough;
}

}  // namespace bypass::dpdk
