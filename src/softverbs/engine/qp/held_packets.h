// HeldPackets: packets of a peer of ours that came before their turn. They wait unchanged, and are handled at their
// turn as if they had come then: nothing of them is visible before.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "softverbs/engine/wire/psn.h"
#include "stack/frame/packet.h"

namespace bypass::rdma {

/// How far after the missing packet a packet may lie; beyond that it counts as lost, too.
inline constexpr std::uint32_t kHoldAhead = 256;

/// A set of numbers within kHoldAhead of each other.
class PsnSet {
 public:
  void add(Psn psn) { word(psn) |= bit(psn); }
  [[nodiscard]] bool has(Psn psn) const { return (words_[psn.v % kHoldAhead / 64] & bit(psn)) != 0; }
  [[nodiscard]] bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  /// Removes those in [from, to).
  void remove(Psn from, Psn to) {
    if (empty()) return;
    if (to - from >= static_cast<std::int32_t>(kHoldAhead)) return clear();
    for (; before(from, to); from = from + 1) word(from) &= ~bit(from);
  }
  void clear() { words_ = {}; }

 private:
  [[nodiscard]] std::uint64_t& word(Psn psn) { return words_[psn.v % kHoldAhead / 64]; }
  static std::uint64_t bit(Psn psn) { return std::uint64_t{1} << (psn.v % 64); }
  std::array<std::uint64_t, kHoldAhead / 64> words_{};
};

/// Frames in the order of their numbers, linked through the frames themselves.
class HeldPackets {
 public:
  [[nodiscard]] bool empty() const { return head_ == nullptr; }
  [[nodiscard]] Psn front() const { return {head_->seq}; }
  [[nodiscard]] Psn back() const { return {tail_->seq}; }
  /// False: a frame with that number is here already.
  bool insert(Packet& frame, Psn psn) {
    Packet** at = &head_;
    if (tail_ != nullptr && before(back(), psn)) at = &tail_->queue_next;
    while (*at != nullptr && before(Psn{(*at)->seq}, psn)) at = &(*at)->queue_next;
    if (*at != nullptr && (*at)->seq == psn.v) return false;
    frame.seq = psn.v;
    frame.queue_next = std::exchange(*at, &frame);
    if (frame.queue_next == nullptr) tail_ = &frame;
    return true;
  }
  Packet* pop() {
    Packet* const frame = head_;
    head_ = std::exchange(frame->queue_next, nullptr);
    if (head_ == nullptr) tail_ = nullptr;
    return frame;
  }
  template <typename F>
  void each(F&& call) const {
    for (const Packet* frame = head_; frame != nullptr; frame = frame->queue_next) call(Psn{frame->seq});
  }

 private:
  Packet* head_ = nullptr;
  Packet* tail_ = nullptr;
};

}  // namespace bypass::rdma
