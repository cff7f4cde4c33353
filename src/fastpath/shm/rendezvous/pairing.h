// Pairing: from the kernel's connection to memory that both ends share. First comes a Rendezvous. Then, over its
// channel, the host makes the segment and passes it; the guest checks and maps it and says that it is ready.
//
// It is a state machine, as Rendezvous is. Its results are the segment and the channel. Over the channel both sides
// then wake each other, and agree where in the stream each direction moves.
#pragma once

#include <cstdint>

#include "fastpath/shm/rendezvous/rendezvous.h"
#include "fastpath/shm/segment.h"

namespace bypass::fastpath::shm {

class Pairing {
 public:
  enum class State : std::uint8_t { kWaiting, kPaired, kRefused };

  /// As Rendezvous::begin(). `sizes` is used if this side becomes the host.
  State begin(int folder, int tcp, const RingSizes& sizes, Instant now, Instant deadline);
  State step(Instant now);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] Refusal refusal() const { return refusal_; }
  /// To be polled for POLLIN; -1: only next_timeout() brings progress.
  [[nodiscard]] int descriptor() const;
  [[nodiscard]] Instant next_timeout() const;

  /// If the state is kWaiting, it becomes kRefused, and a peer that was found is told why.
  void give_up(Refusal why) {
    if (state_ == State::kWaiting) refuse(why);
  }
  /// In a forked child whose copies of our descriptors are closed already.
  void abandon() {
    rendezvous_.abandon();
    channel_.abandon();
  }

  /// Valid when the state is kPaired. take_segment() and take_channel() may be called once.
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
