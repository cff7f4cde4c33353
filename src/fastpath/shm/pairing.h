// Pairing: from the kernel's connection to memory that both ends share. A Rendezvous, and then over its channel: the
// host makes the segment and passes it, the guest checks and maps it and says that it is ready.
//
// A state machine as Rendezvous is. What comes out: the segment, and the channel, on which both sides go on to wake
// each other and to agree where in the stream each direction moves.
#pragma once

#include <cstdint>

#include "fastpath/shm/rendezvous.h"
#include "fastpath/shm/segment.h"

namespace bypass::fastpath::shm {

class Pairing {
 public:
  enum class State : std::uint8_t { kWaiting, kPaired, kRefused };

  /// As Rendezvous::begin; `sizes` count where this side turns out to be the host.
  State begin(int folder, int tcp, const RingSizes& sizes, Instant now, Instant deadline);
  State step(Instant now);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] Refusal refusal() const { return refusal_; }
  /// To be polled for POLLIN; -1: time alone brings it on.
  [[nodiscard]] int descriptor() const;
  [[nodiscard]] Instant next_timeout() const;

  /// Where it is kWaiting it is kRefused, and the peer hears why, as far as one has been found.
  void give_up(Refusal why) {
    if (state_ == State::kWaiting) refuse(why);
  }
  /// In a forked child whose copies of our descriptors are closed already.
  void abandon() {
    rendezvous_.abandon();
    channel_.abandon();
  }

  /// When it is kPaired, once.
  [[nodiscard]] Role role() const { return rendezvous_.role(); }
  [[nodiscard]] Segment take_segment() { return std::move(segment_); }
  [[nodiscard]] Channel take_channel() { return std::move(channel_); }

 private:
  void on_proven();
  void hear();
  [[nodiscard]] Refusal on_message(const Message& message, const Channel::Received& received);
  void refuse(Refusal why);

  Rendezvous rendezvous_;
  RingSizes sizes_;
  Instant deadline_ = kNever;
  State state_ = State::kRefused;
  Refusal refusal_ = Refusal::kNone;
  Segment segment_;
  Channel channel_;
};

}  // namespace bypass::fastpath::shm
