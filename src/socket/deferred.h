// Deferred: work of code that found the shard's lock taken and must not wait: a signal handler that interrupted the
// holder, or a thread that only has to report something. The holder runs the work when it unlocks.
//
// It is preallocated in the arena, with many producers and one consumer (the lock's holder). push() is
// async-signal-safe and never waits. Nothing is linked, so a death at any instruction loses no place: a place says
// which process has it, a bit says that it is filled, a ticket says when it came.
// Tests: tests/socket/kin_test.cc.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "stack/memory/memory.h"

namespace bypass::socket {

struct Deferred {
  std::uint32_t operation = 0;  // an operation of the socket layer
  SlotId object{};
  std::array<std::uint64_t, 4> payload{};
};

/// All zero (fresh memory of the arena) is an empty list.
class DeferredList {
 public:
  static constexpr std::uint32_t kPlaces = 128;

  /// False if every place is taken. `slot`: the process's slot, by which the place is freed if it dies here.
  [[nodiscard]] bool push(std::uint32_t slot, const Deferred& work);

  [[nodiscard]] bool any() const { return (queued_[0].load() | queued_[1].load()) != 0; }

  // The lock's holder
  /// Takes the oldest work; false if there is no work. Its place is free again, so work is done at most once.
  [[nodiscard]] bool take(Deferred& work);
  /// To be called after a death inside the lock.
  void recover();
  /// Frees places that a dead process had taken and not filled.
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
