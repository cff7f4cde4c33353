#include "fastpath/shm/rendezvous/pairing.h"

#include <array>
#include <utility>

namespace bypass::fastpath::shm {

Pairing::State Pairing::begin(int folder, int tcp, const RingSizes& sizes, Instant now, Instant deadline) {
  *this = {};
  sizes_ = sizes;
  deadline_ = deadline;
  state_ = State::kWaiting;
  rendezvous_.begin(folder, tcp, now, deadline);
  return step(now);
}

Pairing::State Pairing::step(Instant now) {
  if (state_ != State::kWaiting) return state_;
  if (!channel_.is_open()) {
    rendezvous_.step(now);
    if (rendezvous_.state() == Rendezvous::State::kRefused) refuse(rendezvous_.refusal());
    if (rendezvous_.state() == Rendezvous::State::kProven) on_proven();
  }
  if (state_ == State::kWaiting && channel_.is_open()) hear();
  if (state_ == State::kWaiting && now >= deadline_) refuse(Refusal::kTimedOut);
  return state_;
}

int Pairing::descriptor() const {
  return channel_.is_open() ? channel_.descriptor() : rendezvous_.descriptor();
}

Instant Pairing::next_timeout() const {
  if (state_ != State::kWaiting) return kNever;
  return channel_.is_open() ? deadline_ : rendezvous_.next_timeout();
}

void Pairing::on_proven() {
  channel_ = rendezvous_.take_channel();
  if (role() == Role::kGuest) return;
  Outcome<Segment> made = Segment::create(sizes_);
  if (!made.ok()) return refuse(made.refusal);
  if (say(channel_, MessageKind::kSegment, Refusal::kNone, made.value.descriptor()) != Channel::Sent::kSent)
    return refuse(Refusal::kPeerGone);
  segment_ = std::move(made.value);
  segment_.close_descriptor();
  // No other descriptor is expected.
  channel_.take_descriptors(false);
}

void Pairing::hear() {
  std::array<std::byte, kMessageRoom> room;
  const Channel::Received received = channel_.receive(room);
  if (received.kind == Channel::Received::Kind::kNothing) return;
  if (received.kind == Channel::Received::Kind::kGone) return refuse(Refusal::kPeerGone);
  const Outcome<Message> message = message_in(room, received);
  if (message.ok() && message.value.kind == MessageKind::kRefused) {
    channel_.close();
    return refuse(message.value.reason);
  }
  const Refusal why = message.ok() ? on_message(message.value, received) : message.refusal;
  if (why != Refusal::kNone) return refuse(why);
  state_ = State::kPaired;
}

Refusal Pairing::on_message(const Message& message, const Channel::Received& received) {
  const bool to_host = role() == Role::kHost;
  if (message.kind != (to_host ? MessageKind::kReady : MessageKind::kSegment)) return Refusal::kBadMessage;
  if (received.many || (to_host && received.descriptor.is_open())) return Refusal::kTooManyDescriptors;
  if (to_host) return Refusal::kNone;
  if (!received.descriptor.is_open()) return Refusal::kNoProof;
  Outcome<Segment> opened = Segment::open(received.descriptor.get());
  if (!opened.ok()) return opened.refusal;
  segment_ = std::move(opened.value);
  channel_.take_descriptors(false);
  return say(channel_, MessageKind::kReady) == Channel::Sent::kSent ? Refusal::kNone : Refusal::kPeerGone;
}

void Pairing::refuse(Refusal why) {
  if (channel_.is_open()) say(channel_, MessageKind::kRefused, why);
  channel_.close();
  segment_ = {};
  refusal_ = why;
  state_ = State::kRefused;
}

}  // namespace bypass::fastpath::shm
