// Rendezvous: how two processes that have the two ends of one kernel TCP connection find each other, and prove to each
// other that they do.
//
// Both go to one abstract Unix socket, whose name is the connection's network namespace and 4-tuple. Who comes first
// binds it (the host); the other connects to it (the guest). A name can be squatted and anybody can connect, so nothing
// is believed that the kernel does not say: SO_PEERCRED must name our own effective user, before a byte is read, and
// the other must pass the descriptor of the connection's other end, which sock_diag must have in that place. What fails
// costs this connection its fast path, and us a bounded time and count.
//
// A state machine that never waits: step() goes as far as it can, again when descriptor() is readable or
// next_timeout() is due; other calls are harmless. It belongs to one thread at a time. Two threads of one process may
// have the two ends.
//
// What a process of the same user can do: be in the name's way (no fast path), and, where it has the name before both
// ends, be handed the guest's end. It could as well trace either process, except where ptrace is restricted by more
// than the user (Yama).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "fastpath/shm/channel.h"
#include "fastpath/shm/connection.h"
#include "fastpath/shm/message.h"
#include "stack/time.h"

namespace bypass::fastpath::shm {

enum class Role : std::uint8_t { kHost, kGuest };

/// What a Unix socket address has behind its zero byte.
struct RendezvousName {
  std::array<char, 107> text{};
  std::size_t bytes = 0;
};
/// The same for both ends: "bypass-NETWORK-ADDRESS.PORT-ADDRESS.PORT", in hexadecimal digits, the lower endpoint first.
[[nodiscard]] RendezvousName rendezvous_name(const ConnectionEnd& end);

class Rendezvous {
 public:
  enum class State : std::uint8_t { kWaiting, kProven, kRefused };

  /// A guest that says nothing for so long makes room for the next one.
  static constexpr Duration kGuestPatience = std::chrono::milliseconds(20);
  /// Guests that were not the other end, then no more are listened to.
  static constexpr unsigned kMostGuests = 8;

  /// For the connection that `tcp` is an end of, until `deadline`. `tcp` stays the caller's, and open.
  State begin(int tcp, Instant now, Instant deadline);
  State step(Instant now);

  [[nodiscard]] State state() const;
  /// Why it is kRefused. By the peer or by us: the reason is the same table's.
  [[nodiscard]] Refusal refusal() const { return refusal_; }
  /// To be polled for POLLIN; -1: time alone brings it on.
  [[nodiscard]] int descriptor() const;
  [[nodiscard]] Instant next_timeout() const;

  /// In a forked child whose copies of our descriptors are closed already.
  void abandon() {
    listener_.abandon();
    channel_.abandon();
  }

  /// When it is kProven: who makes the segment (the host), and the channel, once.
  [[nodiscard]] Role role() const { return role_; }
  [[nodiscard]] Channel take_channel() { return std::move(channel_); }

 private:
  enum class Stage : std::uint8_t {
    kFinding,    // neither bound nor connected
    kListening,  // host: the name is ours
    kHosting,    // host: a guest of our user, whose proof is to come
    kWelcome,    // guest: connected, nothing heard yet
    kAnswer,     // guest: our proof is sent, the host's is to come
    kProven,
    kRefused,
  };

  // The steps. True: go on, something has changed.
  bool find(Instant now);
  bool listen(Channel bound);
  bool greet(Channel host);
  bool pause(Instant now);
  bool accept_guest(Instant now);
  bool hear_guest(Instant now);
  bool dismiss(Refusal why);
  bool hear_host(Instant now);
  bool hear_welcome(const Message& message, const Channel::Received& received, Instant now);
  bool hear_answer(const Message& message, const Channel::Received& received);
  bool start_over(Instant now);
  bool refuse(Refusal why);
  bool finish(Role role);

  [[nodiscard]] Refusal check_proof(const Message& message, const Channel::Received& received) const;

  int tcp_ = -1;
  ConnectionEnd end_;
  Instant deadline_ = kNever;
  Instant turn_ends_ = kNever;  // kHosting: the guest's; kFinding: when to try again
  Duration pause_{};
  Stage stage_ = Stage::kRefused;
  Role role_ = Role::kHost;
  Refusal refusal_ = Refusal::kNone;
  Refusal last_guest_ = Refusal::kNone;
  unsigned guests_ = 0;
  unsigned hosts_ = 0;
  Channel listener_;
  Channel channel_;
};

}  // namespace bypass::fastpath::shm
