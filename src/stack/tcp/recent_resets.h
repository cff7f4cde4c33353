// RecentResets: the latest RSTs, to be sent again if a wire goes down at that time.
//
// Nothing repeats an RST: the sender has forgotten the connection, and a peer that has nothing to send waits for ever.
// If the owner's death takes a wire down, the contents of its rings are lost. So what was sent shortly before the wire
// came up is sent again, several times. In its first moments the wire may lose that, too, or lose the answer of a peer
// with other numbers; and Linux answers only one such question in half a second (tcp_invalid_ratelimit). A peer that
// received the first RST has no such connection and ignores the others. An RST that found no room on the device is
// owed, and is sent when there is room.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "stack/tcp/flow_table.h"
#include "stack/tcp/seq.h"
#include "stack/time.h"

namespace bypass::tcp {

struct RecentReset {
  FlowKey key;
  SeqNum seq{}, ack{};
  /// A number below what we have sent, for a peer whose numbers ours may lag behind. Such a peer answers a segment
  /// outside its window with its own numbers (RFC 9293 §3.10.7.4), and so we learn the right ones.
  SeqNum before{};
  Instant at{};
  bool owed = false;
  /// It is not known whether the peer has a connection. Only `before` is sent, which a peer in SYN-SENT ignores.
  bool asks = false;
};

class RecentResets {
 public:
  static constexpr std::uint32_t kSlots = 512;
  /// A wire that another process takes over is up again in about 10 ms, or in seconds on an overloaded machine.
  static constexpr Duration kLifetime = std::chrono::seconds(10);
  /// The pauses double.
  static constexpr Duration kFirstPause = std::chrono::milliseconds(600);
  static constexpr unsigned kRepeats = 4;

  /// Notes an RST; the oldest gives way. Returns whether that one was younger than kLifetime.
  bool note(const RecentReset& recent_reset) {
    RecentReset& slot = slots_[noted_++ % kSlots];
    const bool lost = noted_ > kSlots && recent_reset.at - slot.at < kLifetime;
    if (slot.owed) owed_--;
    slot = recent_reset;
    return lost;
  }

  /// The latest RST was not sent.
  void owe() {
    slots_[(noted_ - 1) % kSlots].owed = true;
    owed_++;
  }
  [[nodiscard]] bool owes() const { return owed_ != 0; }
  /// Sends those owed, the oldest first; `send` returns false if there is no room yet. Drops what is older than
  /// kLifetime.
  template <typename Send>
  void settle(Instant now, Send&& send) {
    std::uint32_t left = 0;
    for (std::uint64_t i = first(); i < noted_ && owed_ != 0; i++) {
      RecentReset& slot = slots_[i % kSlots];
      if (!slot.owed) continue;
      slot.owed = now - slot.at < kLifetime && !send(slot);
      left += slot.owed ? 1 : 0;
    }
    owed_ = left;
  }

  /// RSTs that are not older than kLifetime are sent again kRepeats times, by repeat().
  void begin_repeats(Instant now) {
    const std::uint64_t from = first_recent(now);
    if (from == noted_) return;
    repeat_from_ = from;
    repeat_until_ = noted_;
    repeats_ = 0;
    repeat_at_ = now + kFirstPause;
  }
  /// When repeat() has something to do.
  [[nodiscard]] Instant next_repeat() const { return repeat_at_; }
  template <typename Function>
  void repeat(Instant now, Function&& function) {
    if (now < repeat_at_) return;
    for (std::uint64_t i = std::max(repeat_from_, first()); i < repeat_until_; i++) function(slots_[i % kSlots]);
    repeats_++;
    repeat_at_ = repeats_ < kRepeats ? now + kFirstPause * (1U << repeats_) : kNever;
  }

  /// Calls `f` for those that are not older than kLifetime, the oldest first.
  template <typename Function>
  void recent(Instant now, Function&& function) const {
    for (std::uint64_t i = first_recent(now); i < noted_; i++) function(slots_[i % kSlots]);
  }

 private:
  [[nodiscard]] std::uint64_t first() const { return noted_ > kSlots ? noted_ - kSlots : 0; }
  [[nodiscard]] std::uint64_t first_recent(Instant now) const {
    std::uint64_t i = first();
    while (i < noted_ && now - slots_[i % kSlots].at >= kLifetime) i++;
    return i;
  }

  std::uint64_t noted_ = 0;
  std::uint64_t repeat_from_ = 0, repeat_until_ = 0;
  unsigned repeats_ = 0;  // repeats made so far
  Instant repeat_at_ = kNever;
  std::uint32_t owed_ = 0;
  std::array<RecentReset, kSlots> slots_;
};

}  // namespace bypass::tcp
