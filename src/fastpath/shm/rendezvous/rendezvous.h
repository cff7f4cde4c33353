// Rendezvous: how two processes, each with one end of a kernel TCP connection, find each other and prove to each other
// that they have its ends.
//
// Both processes use one Unix socket in the run directory (0700). Its name is made of the connection's network
// namespace and 4-tuple. The first process binds it (the host); the other connects to it (the guest). A process of the
// same user may take either place and have fewer rights. So no descriptor is passed, and only what the kernel says is
// believed. SO_PEERCRED must name our own effective user and a process. That process must have the connection's other
// end under the number that it sends (connection.h). A failure costs this connection its fast path, and us a bounded
// time and number of attempts.
//
// It is a state machine that never waits. step() goes as far as it can. Call it again when descriptor() is readable or
// next_timeout() is due; other calls are harmless. One thread at a time may use it. Two threads of one process may have
// the two ends.
//
// A process of the same user can block the name, so that the connection gets no fast path. It can do nothing more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fastpath/shm/rendezvous/channel.h"
#include "fastpath/shm/rendezvous/connection.h"
#include "fastpath/shm/rendezvous/message.h"
#include "fastpath/shm/rendezvous/named_listener.h"
#include "stack/time.h"

namespace bypass::fastpath::shm {

enum class Role : std::uint8_t { kHost, kGuest };

/// The name of a file.
struct RendezvousName {
  static constexpr std::string_view kPrefix = "meet-";
  std::array<char, 64> text{};
  [[nodiscard]] std::string_view view() const { return {text.data(), text.size()}; }
};
/// The file's name, the same for both ends: "meet-", then the network namespace, the lower endpoint and the higher one
/// as 59 digits of base 64 (RFC 4648 §5).
[[nodiscard]] RendezvousName rendezvous_name(const ConnectionEnd& end);

class Rendezvous {
 public:
  enum class State : std::uint8_t { kWaiting, kProven, kRefused };

  /// A guest that sends nothing for so long makes room for the next one. A process with a thousand connections checks
  /// as many proofs before it answers the last.
  static constexpr Duration kGuestPatience = std::chrono::milliseconds(100);
  /// After so many guests that were not the other end, no more are accepted.
  static constexpr unsigned kMostGuests = 8;

  /// Begins for the connection that `tcp` is an end of, and lasts until `deadline`. `tcp` stays the caller's and must
  /// stay open. `folder` is a descriptor of the run directory, which must outlive this object.
  State begin(int folder, int tcp, Instant now, Instant deadline);
  State step(Instant now);

  [[nodiscard]] State state() const;
  /// Why the state is kRefused. The peer and this process use the same reasons.
  [[nodiscard]] Refusal refusal() const { return refusal_; }
  /// To be polled for POLLIN; -1: only next_timeout() brings progress.
  [[nodiscard]] int descriptor() const;
  [[nodiscard]] Instant next_timeout() const;

  /// In a forked child whose copies of our descriptors are closed already.
  void abandon() {
    listener_.abandon();
    channel_.abandon();
  }

  /// Valid when the state is kProven: the role (the host makes the segment), and the channel, which may be taken once.
  [[nodiscard]] Role role() const { return role_; }
  [[nodiscard]] Channel take_channel() { return std::move(channel_); }

 private:
  enum class Stage : std::uint8_t {
    kFinding,    // neither bound nor connected
    kListening,  // host: the name is bound
    kHosting,    // host: a guest of our user has come, and its proof is awaited
    kWelcome,    // guest: connected, nothing received yet
    kAnswer,     // guest: the host has proven itself, and our proof was sent
    kProven,
    kRefused,
  };

  // The steps. True: something has changed, so the next step may follow.
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
  Instant turn_ends_ = kNever;  // kHosting: when the guest's time ends; kFinding: when to try again
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
