#include "fastpath/shm/rendezvous/rendezvous.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <span>
#include <utility>

namespace bypass::fastpath::shm {
namespace {

using namespace std::chrono_literals;

// Between bind and listen the host can neither be reached nor replaced. This takes microseconds, unless the host was
// stopped.
constexpr Duration kFirstPause = 50us, kMostPause = 20ms;
// Others may wait while one guest is checked.
constexpr int kBacklog = 4;
// Hosts that may go away before they have said who they are; after that the connection is refused.
constexpr unsigned kMostHosts = 8;

// In seconds; longer than any attempt takes, so the process that had the name was killed.
constexpr int kOldName = 2;

// snprintf may take locks and allocate. This code runs where neither is possible.
class Digits {
 public:
  explicit Digits(char* at) : at_(at) {}
  void put(std::span<const std::uint8_t> bytes) {
    for (const std::uint8_t byte : bytes) {
      bits_ = bits_ << 8 | byte;
      for (held_ += 8; held_ >= 6; held_ -= 6) put_digit(bits_ >> (held_ - 6));
    }
  }
  void end() { put_digit(bits_ << (6 - held_)); }

 private:
  void put_digit(std::uint32_t bits) {
    *at_++ = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[bits & 0x3f];
  }

  char* at_;
  std::uint32_t bits_ = 0;
  int held_ = 0;
};

void put_endpoint(Digits& digits, const Endpoint& endpoint) {
  digits.put(endpoint.address.bytes);
  digits.put(std::array{static_cast<std::uint8_t>(endpoint.port >> 8), static_cast<std::uint8_t>(endpoint.port)});
}
constexpr std::size_t kNamedBytes = 8 + 2 * (16 + 2);
static_assert(RendezvousName::kPrefix.size() + (8 * kNamedBytes + 5) / 6 == sizeof RendezvousName::text);

}  // namespace

RendezvousName rendezvous_name(const ConnectionEnd& end) {
  RendezvousName name;
  Digits digits(std::copy(RendezvousName::kPrefix.begin(), RendezvousName::kPrefix.end(), name.text.data()));
  digits.put(std::bit_cast<std::array<std::uint8_t, sizeof end.network>>(end.network));
  put_endpoint(digits, std::min(end.local, end.remote));
  put_endpoint(digits, std::max(end.local, end.remote));
  digits.end();
  return name;
}

// --- What the caller sees

Rendezvous::State Rendezvous::begin(int folder, int tcp, Instant now, Instant deadline) {
  *this = {};
  folder_ = folder;
  tcp_ = tcp;
  deadline_ = deadline;
  turn_ends_ = now;
  const Outcome<ConnectionEnd> end = connection_end(tcp);
  if (!end.ok()) {
    refuse(end.refusal);
  } else if (end.value.local == end.value.remote) {
    refuse(Refusal::kSelfConnected);
  } else {
    end_ = end.value;
    pause_ = kFirstPause;
    stage_ = Stage::kFinding;
  }
  return step(now);
}

Rendezvous::State Rendezvous::step(Instant now) {
  for (bool on = true; on;) {
    if (state() != State::kWaiting) break;
    if (now >= deadline_) {
      refuse(last_guest_ != Refusal::kNone ? last_guest_ : Refusal::kTimedOut);
      break;
    }
    switch (stage_) {
      case Stage::kFinding:
        on = find(now);
        break;
      case Stage::kListening:
        on = accept_guest(now);
        break;
      case Stage::kHosting:
        on = hear_guest(now);
        break;
      case Stage::kWelcome:
      case Stage::kAnswer:
        on = hear_host(now);
        break;
      case Stage::kProven:
      case Stage::kRefused:
        on = false;
    }
  }
  return state();
}

Rendezvous::State Rendezvous::state() const {
  if (stage_ == Stage::kProven) return State::kProven;
  return stage_ == Stage::kRefused ? State::kRefused : State::kWaiting;
}

int Rendezvous::descriptor() const {
  return stage_ == Stage::kListening ? listener_.descriptor() : channel_.descriptor();
}

Instant Rendezvous::next_timeout() const {
  if (state() != State::kWaiting) return kNever;
  const bool has_turn = stage_ == Stage::kFinding || stage_ == Stage::kHosting;
  return has_turn ? std::min(deadline_, turn_ends_) : deadline_;
}

// --- Finding

bool Rendezvous::find(Instant now) {
  if (now < turn_ends_) return false;
  const RendezvousName name = rendezvous_name(end_);
  Channel host;
  const long bound = listener_.open(folder_, name.view(), kBacklog, &host);
  if (bound == 0) {
    stage_ = Stage::kListening;
    return false;  // poll() reports a guest; to look in vain costs a microsecond, and most peers are plain
  }
  // the directory belongs to the user that this process had before
  if (bound == -EACCES) return refuse(Refusal::kOtherUser);
  if (bound != -EADDRINUSE) return refuse(Refusal::kNoResources);
  if (const long r = NamedListener::connect(folder_, name.view(), host); r != 0) return on_taken(r, now);
  return greet(std::move(host));
}

bool Rendezvous::on_taken(long error, Instant now) {
  if (error == -EMFILE || error == -ENFILE) return refuse(Refusal::kNoResources);
  if (error == -EACCES || error == -EPERM) return refuse(Refusal::kOtherUser);
  if (error == -ECONNREFUSED) (void)NamedListener::sweep_one(folder_, rendezvous_name(end_).view(), kOldName);
  return pause(now);
}

bool Rendezvous::greet(Channel host) {
  if (!host.is_of_our_user()) return refuse(Refusal::kOtherUser);
  channel_ = std::move(host);
  stage_ = Stage::kWelcome;
  return true;
}

/// The name is taken, and nobody answers yet. Later the name may be free.
bool Rendezvous::pause(Instant now) {
  turn_ends_ = now + pause_;
  pause_ = std::min(2 * pause_, kMostPause);
  return false;
}

// --- The host

bool Rendezvous::accept_guest(Instant now) {
  const long fd = listener_.accept();
  if (fd == -EMFILE || fd == -ENFILE) return refuse(Refusal::kNoResources);
  if (fd < 0) return false;
  channel_ = Channel(Descriptor::kept(fd));
  if (!channel_.is_of_our_user()) return dismiss(Refusal::kOtherUser);
  say_end(channel_, MessageKind::kWelcome, tcp_);
  stage_ = Stage::kHosting;
  turn_ends_ = now + kGuestPatience;
  return true;
}

bool Rendezvous::hear_guest(Instant now) {
  std::array<std::byte, kMessageRoom> room;
  Channel::Received received = channel_.receive(room);
  if (received.kind == Channel::Received::Kind::kNothing) return now >= turn_ends_ && dismiss(Refusal::kTimedOut);
  if (received.kind == Channel::Received::Kind::kGone) return dismiss(Refusal::kPeerGone);
  const Outcome<Message> message = message_in(room, received);
  const Refusal why = message.ok() ? on_guests_message(message.value, received) : message.refusal;
  if (why != Refusal::kNone) return dismiss(why);
  return say(channel_, MessageKind::kProof) == Channel::Sent::kSent ? finish(Role::kHost) : dismiss(Refusal::kPeerGone);
}

Refusal Rendezvous::on_guests_message(const Message& message, const Channel::Received& received) const {
  if (message.kind == MessageKind::kRefused) return message.reason;
  return message.kind == MessageKind::kProof ? check_proof(message, received) : Refusal::kBadMessage;
}

bool Rendezvous::dismiss(Refusal why) {
  if (why != Refusal::kOtherUser) say(channel_, MessageKind::kRefused, why);
  channel_.close();
  last_guest_ = why;
  if (++guests_ >= kMostGuests) return refuse(Refusal::kTooManyStrangers);
  stage_ = Stage::kListening;
  return true;
}

// --- The guest

bool Rendezvous::hear_host(Instant now) {
  std::array<std::byte, kMessageRoom> room;
  Channel::Received received = channel_.receive(room);
  if (received.kind == Channel::Received::Kind::kNothing) return false;
  if (received.kind == Channel::Received::Kind::kGone) return start_over(now);
  const Outcome<Message> message = message_in(room, received);
  if (!message.ok()) return refuse(message.refusal);
  if (message.value.kind == MessageKind::kRefused) {
    // This end sent its proof too late. The host now waits for others, and for this end again.
    if (message.value.reason == Refusal::kTimedOut) return start_over(now);
    channel_.close();
    return refuse(message.value.reason);
  }
  return stage_ == Stage::kWelcome ? hear_welcome(message.value, received, now) : hear_answer(message.value, received);
}

bool Rendezvous::hear_welcome(const Message& message, const Channel::Received& received, Instant now) {
  if (message.kind != MessageKind::kWelcome) return refuse(Refusal::kBadMessage);
  const Refusal why = check_proof(message, received);
  if (why == Refusal::kPeerGone) return start_over(now);
  if (why != Refusal::kNone) return refuse(why);
  channel_.take_descriptors(true);  // the segment comes right behind the answer
  if (say_end(channel_, MessageKind::kProof, tcp_) != Channel::Sent::kSent) return start_over(now);
  stage_ = Stage::kAnswer;
  return true;
}

/// The host's first message has proven already that it has the other end.
bool Rendezvous::hear_answer(const Message& message, const Channel::Received& received) {
  if (received.many || received.descriptor.is_open()) return refuse(Refusal::kTooManyDescriptors);
  return message.kind == MessageKind::kProof ? finish(Role::kGuest) : refuse(Refusal::kBadMessage);
}

/// The host went away: it died, or did not wait long enough.
bool Rendezvous::start_over(Instant now) {
  channel_.close();
  if (++hosts_ >= kMostHosts) return refuse(Refusal::kPeerGone);
  stage_ = Stage::kFinding;
  return pause(now);
}

// --- Both

Refusal Rendezvous::check_proof(const Message& message, const Channel::Received& received) const {
  if (received.many || received.descriptor.is_open()) return Refusal::kTooManyDescriptors;
  const Refusal why = check_other_end({channel_.peer_process(), message.number, message.interface}, end_);
  // This is asked last: until the answer, the pid was certainly the peer's.
  return channel_.has_peer_ended() ? Refusal::kPeerGone : why;
}

bool Rendezvous::refuse(Refusal why) {
  if (channel_.is_open() && why != Refusal::kOtherUser) say(channel_, MessageKind::kRefused, why);
  channel_.close();
  listener_.close();
  refusal_ = why;
  stage_ = Stage::kRefused;
  return false;
}

bool Rendezvous::finish(Role role) {
  listener_.close();
  role_ = role;
  stage_ = Stage::kProven;
  return false;
}

}  // namespace bypass::fastpath::shm
