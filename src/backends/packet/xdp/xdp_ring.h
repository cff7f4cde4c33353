// XdpRing: one of the four rings of an AF_XDP socket, as this process sees it. The kernel is at the other end. Each end
// writes its own index; the release and acquire of the index are the barrier.
#pragma once

#include <linux/if_xdp.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace bypass::packet {

template <typename Entry>
class XdpRing {
 public:
  XdpRing() = default;
  XdpRing(const XdpRing&) = delete;
  XdpRing& operator=(const XdpRing&) = delete;
  ~XdpRing();

  /// `size_option` makes the ring with this many entries (a power of two). `page_offset`: the offset for mmap(2). False
  /// with errno.
  bool create(int socket, int size_option, off_t page_offset, const xdp_ring_offset& offsets, std::uint32_t entries);

  // --- The producer's side
  [[nodiscard]] std::uint32_t room() {
    consumer_seen_ = __atomic_load_n(consumer_, __ATOMIC_ACQUIRE);
    return entries_ - (own_ - consumer_seen_);
  }
  void put(const Entry& entry) { ring_[own_++ & (entries_ - 1)] = entry; }
  void publish() { __atomic_store_n(producer_, own_, __ATOMIC_RELEASE); }

  // --- The consumer's side
  [[nodiscard]] std::uint32_t waiting() const { return __atomic_load_n(producer_, __ATOMIC_ACQUIRE) - own_; }
  [[nodiscard]] const Entry& take() { return ring_[own_++ & (entries_ - 1)]; }
  void release() { __atomic_store_n(consumer_, own_, __ATOMIC_RELEASE); }

  [[nodiscard]] bool needs_wakeup() const {
    return (__atomic_load_n(flags_, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP) != 0;
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t entries_ = 0;
  std::uint32_t own_ = 0, consumer_seen_ = 0;
  std::uint32_t *producer_ = nullptr, *consumer_ = nullptr, *flags_ = nullptr;
  Entry* ring_ = nullptr;
};

}  // namespace bypass::packet
