// Rendezvous: how two processes that have the two ends of one kernel TCP connection find each other, and prove to each
// other that they do.
//
// Both go to one Unix socket in the run directory (0700), whose name is the connection's network namespace and 4-tuple.
// The first to come binds it (the host); the other connects to it (the guest). A process of the same user may stand in
// either place and have fewer rights, so no descriptor is passed and nothing is believed that the kernel does not say:
// SO_PEERCRED must name our own effective user and a process, and that process must have the connection's other end
// under the number that it says (connection.h). What fails costs this connection its fast path, and us a bounded time
// and count.
//
// A state machine that never waits: step() goes as far as it can, again when descriptor() is readable or
// next_timeout() is due; other calls are harmless. It belongs to one thread at a time. Two threads of one process may
// have the two ends.
//
// What a process of the same user can do: be in the name's way (no fast path).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fastpath/shm/channel.h"
#include "fastpath/shm/connection.h"
#include "fastpath/shm/message.h"
#include "fastpath/shm/named_listener.h"
#include "stack/time.h"

namespace bypass::fastpath::shm {

enum class Role : std::uint8_t { kHost, kGuest };

/// The name of a file.
struct RendezvousName {
  static constexpr std::string_view kPrefix = "meet-";
  std::array<char, 64> text{};
  [[nodiscard]] std::string_view view() const { return {text.data(), text.size()}; }
};
/// The same for both ends: "meet-", and network namespace, the lower endpoint and the higher one as 59 digits of base
/// 64 (RFC 4648 §5).
[[nodiscard]] RendezvousName rendezvous_name(const ConnectionEnd& end);

class Rendezvous {
 public:
  enum class State : std::uint8_t { kWaiting, kProven, kRefused };

  /// A guest that says nothing for so long makes room for the next one. A process with a thousand connections looks at
  /// as many proofs before it answers the last.
  static constexpr Duration kGuestPatience = std::chrono::milliseconds(100);
  /// Guests that were not the other end, then no more are listened to.
  static constexpr unsigned kMostGuests = 8;

  /// For the connection that `tcp` is an end of, until `deadline`. `tcp` stays the caller's, and open; `folder` is a
  /// descriptor of the run directory, which outlives this.
  State begin(int folder, int tcp, Instant now, Instant deadline);
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
    kAnswer,     // guest: the host has proven itself, our proof is sent
    kProven,
    kRefused,
  };

  // The steps. True: go on, something has changed.
  bool find(Instant now);
  bool greet(Channel host);
  bool pause(Instant now);
  bool on_taken(long error, Instant now);
  bool accept_guest(Instant now);
  bool hear_guest(Instant now);
  [[nodiscard]] Refusal on_guests_message(const Message& message, const Channel::Received& received) const;
  bool dismiss(Refusal why);
  bool hear_host(Instant now);
  bool hear_welcome(const Message& message, const Channel::Received& received, Instant now);
  bool hear_answer(const Message& message, const Channel::Received& received);
  bool start_over(Instant now);
  bool refuse(Refusal why);
  bool finish(Role role);

  [[nodiscard]] Refusal check_proof(const Message& message, const Channel::Received& received) const;

  int folder_ = -1;
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
  NamedListener listener_;
  Channel channel_;
};

}  // namespace bypass::fastpath::shm
