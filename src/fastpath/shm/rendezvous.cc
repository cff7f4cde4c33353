#include "fastpath/shm/rendezvous.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace bypass::fastpath::shm {
namespace {

namespace os = socket::os;
using namespace std::chrono_literals;

// Between bind and listen the host can be neither found nor replaced; it is over in microseconds, unless it was
// stopped.
constexpr Duration kFirstPause = 50us, kMostPause = 20ms;
// More than one waits while another is looked at.
constexpr int kBacklog = 4;
// Hosts that went away before they had said who they were; then that is the answer.
constexpr unsigned kMostHosts = 8;

struct UnixName {
  sockaddr_un name{};
  long bytes = 0;

  explicit UnixName(const RendezvousName& text) {
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.text.data(), text.bytes);
    bytes = static_cast<long>(offsetof(sockaddr_un, sun_path) + 1 + text.bytes);
  }
};

// snprintf may take locks and allocate, and may be called from where neither is possible.
class NameWriter {
 public:
  explicit NameWriter(RendezvousName& name) : name_(name) {}
  void put(const char* text) {
    while (*text != 0) put(*text++);
  }
  void put_number(std::uint64_t number, int digits) {
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) put("0123456789abcdef"[(number >> shift) & 0xf]);
  }
  void put_endpoint(const Endpoint& endpoint) {
    put('-');
    for (const std::uint8_t byte : endpoint.address.bytes) put_number(byte, 2);
    put('.');
    put_number(endpoint.port, 4);
  }

 private:
  void put(char c) { name_.text[name_.bytes++] = c; }

  RendezvousName& name_;
};
constexpr std::size_t kNameBytes = sizeof "bypass-" - 1 + 16 + 2 * (1 + 32 + 1 + 4);
static_assert(kNameBytes <= std::tuple_size_v<decltype(RendezvousName::text)>);
static_assert(kNameBytes + 1 <= sizeof sockaddr_un::sun_path);

}  // namespace

RendezvousName rendezvous_name(const ConnectionEnd& end) {
  RendezvousName name;
  NameWriter writer(name);
  writer.put("bypass-");
  writer.put_number(end.network, 16);
  writer.put_endpoint(std::min(end.local, end.remote));
  writer.put_endpoint(std::max(end.local, end.remote));
  return name;
}

// --- What the caller sees

Rendezvous::State Rendezvous::begin(int tcp, Instant now, Instant deadline) {
  *this = {};
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
  Channel made = Channel::make();
  if (!made.is_open()) return refuse(Refusal::kNoResources);
  const UnixName name(rendezvous_name(end_));
  const long bound = os::call(SYS_bind, made.descriptor(), os::address(&name.name), name.bytes);
  if (bound == 0) return listen(std::move(made));
  if (bound != -EADDRINUSE) return refuse(Refusal::kNoResources);
  if (os::call(SYS_connect, made.descriptor(), os::address(&name.name), name.bytes) != 0) return pause(now);
  return greet(std::move(made));
}

bool Rendezvous::listen(Channel bound) {
  if (os::call(SYS_listen, bound.descriptor(), kBacklog) != 0) return refuse(Refusal::kNoResources);
  listener_ = std::move(bound);
  stage_ = Stage::kListening;
  return false;  // poll() tells when somebody has come: to ask in vain costs a microsecond, and most peers are plain
}

bool Rendezvous::greet(Channel host) {
  if (!host.is_of_our_user()) return refuse(Refusal::kOtherUser);
  host.take_descriptors(true);
  channel_ = std::move(host);
  stage_ = Stage::kWelcome;
  return true;
}

/// The name is taken, and nobody answers, or not yet: it may be free by then.
bool Rendezvous::pause(Instant now) {
  turn_ends_ = now + pause_;
  pause_ = std::min(2 * pause_, kMostPause);
  return false;
}

// --- The host

bool Rendezvous::accept_guest(Instant now) {
  const long fd = os::call(SYS_accept4, listener_.descriptor(), 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd == -EMFILE || fd == -ENFILE) return refuse(Refusal::kNoResources);
  if (fd < 0) return false;
  channel_ = Channel(Descriptor::kept(fd));
  if (!channel_.is_of_our_user()) return dismiss(Refusal::kOtherUser);
  channel_.take_descriptors(true);
  say(channel_, MessageKind::kWelcome);
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
  const Refusal why = message.ok() ? check_proof(message.value, received) : message.refusal;
  if (why != Refusal::kNone) return dismiss(why);
  return say(channel_, MessageKind::kProof, Refusal::kNone, tcp_) == Channel::Sent::kSent ? finish(Role::kHost)
                                                                                          : dismiss(Refusal::kPeerGone);
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
    // This end was too late with its proof: the host waits for others now, and for this end again.
    if (message.value.reason == Refusal::kTimedOut) return start_over(now);
    channel_.close();
    return refuse(message.value.reason);
  }
  return stage_ == Stage::kWelcome ? hear_welcome(message.value, received, now) : hear_answer(message.value, received);
}

bool Rendezvous::hear_welcome(const Message& message, const Channel::Received& received, Instant now) {
  if (message.kind != MessageKind::kWelcome) return refuse(Refusal::kBadMessage);
  if (received.many || received.descriptor.is_open()) return refuse(Refusal::kTooManyDescriptors);
  if (say(channel_, MessageKind::kProof, Refusal::kNone, tcp_) != Channel::Sent::kSent) return start_over(now);
  stage_ = Stage::kAnswer;
  return true;
}

bool Rendezvous::hear_answer(const Message& message, const Channel::Received& received) {
  const Refusal why = check_proof(message, received);
  return why == Refusal::kNone ? finish(Role::kGuest) : refuse(why);
}

/// The host went away: it died, or did not wait so long.
bool Rendezvous::start_over(Instant now) {
  channel_.close();
  if (++hosts_ >= kMostHosts) return refuse(Refusal::kPeerGone);
  stage_ = Stage::kFinding;
  return pause(now);
}

// --- Both

Refusal Rendezvous::check_proof(const Message& message, const Channel::Received& received) const {
  if (message.kind != MessageKind::kProof) return Refusal::kBadMessage;
  if (received.many) return Refusal::kTooManyDescriptors;
  if (!received.descriptor.is_open()) return Refusal::kNoProof;
  return check_other_end(received.descriptor.get(), end_);
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
