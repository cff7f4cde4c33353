// Deferred: what somebody wanted done who found the shard's lock taken and must not wait for it: a signal handler
// on top of the holder, a thread that only wanted to say something. The holder runs it when it unlocks.
//
// Preallocated in the arena, many producers, one consumer (the lock's holder). push() is async-signal-safe and
// never waits. Nothing is linked, so that a death at any instruction loses no place: a place says who has it, a
// bit says that it is filled, a ticket says when it came.
// Tests: tests/socket/kin_test.cc.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "stack/memory/memory.h"

namespace bypass::socket {

struct Deferred {
  std::uint32_t operation = 0;  // the socket layer's
  SlotId object{};
  std::array<std::uint64_t, 4> payload{};
};

/// All zero (fresh memory of the arena) is an empty list.
class DeferredList {
 public:
  static constexpr std::uint32_t kPlaces = 128;

  /// False when every place is taken. `slot`: the process's, to give the place back should it die right here.
  [[nodiscard]] bool push(std::uint32_t slot, const Deferred& work);

  [[nodiscard]] bool any() const { return (queued_[0].load() | queued_[1].load()) != 0; }

  // The lock's holder
  /// The oldest; false when there is none. Its place is free again: work is done at most once.
  [[nodiscard]] bool take(Deferred& work);
  /// After a death inside the lock.
  void recover();
  /// Places that a dead process had taken and not filled.
  void sweep(std::uint32_t slot);

 private:
  static constexpr std::uint32_t kTaking = 0xffffffff;

  struct alignas(64) Place {
    std::atomic<std::uint32_t> owner;  // 0: free; slot + 1; kTaking
    std::uint64_t ticket;
    Deferred work;
  };
  static_assert(sizeof(Place) == 64);

  [[nodiscard]] bool is_queued(std::uint32_t i) const { return (queued_[i / 64].load() >> (i % 64) & 1) != 0; }
  void clear_queued(std::uint32_t i) { queued_[i / 64].fetch_and(~(std::uint64_t{1} << (i % 64))); }

  alignas(64) std::array<std::atomic<std::uint64_t>, kPlaces / 64> queued_;
  std::atomic<std::uint64_t> tickets_;
  std::array<Place, kPlaces> places_;
};

}  // namespace bypass::socket
