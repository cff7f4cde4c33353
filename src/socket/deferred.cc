#include "socket/deferred.h"

#include <bit>

namespace bypass::socket {

bool DeferredList::push(std::uint32_t slot, const Deferred& work) {
  const auto first = static_cast<std::uint32_t>(tickets_.load(std::memory_order_relaxed));
  for (std::uint32_t i = 0; i < kPlaces; i++) {
    const std::uint32_t at = (first + i) % kPlaces;
    Place& place = places_[at];
    std::uint32_t expected = 0;
    if (!place.owner.compare_exchange_strong(expected, slot + 1, std::memory_order_acquire)) continue;
    place.work = work;
    place.ticket = tickets_.fetch_add(1, std::memory_order_relaxed);
    // Pairs with any() after the holder let go of the lock's word: either it sees the bit, or we, who try the
    // lock next, find it free.
    queued_[at / 64].fetch_or(std::uint64_t{1} << (at % 64));
    return true;
  }
  return false;
}

bool DeferredList::take(Deferred& work) {
  std::uint32_t oldest = kPlaces;
  for (std::uint32_t word = 0; word < queued_.size(); word++) {
    for (std::uint64_t bits = queued_[word].load(); bits != 0; bits &= bits - 1) {
      const std::uint32_t i = word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
      if (oldest == kPlaces || places_[i].ticket < places_[oldest].ticket) oldest = i;
    }
  }
  if (oldest == kPlaces) return false;
  Place& place = places_[oldest];
  work = place.work;
  place.owner.store(kTaking, std::memory_order_relaxed);
  clear_queued(oldest);
  place.owner.store(0, std::memory_order_release);
  return true;
}

void DeferredList::recover() {
  for (std::uint32_t i = 0; i < kPlaces; i++) {
    if (places_[i].owner.load() != kTaking) continue;
    clear_queued(i);
    places_[i].owner.store(0, std::memory_order_release);
  }
}

void DeferredList::sweep(std::uint32_t slot) {
  for (std::uint32_t i = 0; i < kPlaces; i++) {
    if (!is_queued(i) && places_[i].owner.load() == slot + 1) places_[i].owner.store(0, std::memory_order_release);
  }
}

}  // namespace bypass::socket
