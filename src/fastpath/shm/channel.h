// Channel: a Unix socket (SOCK_SEQPACKET) to the process at the other end: packets, at most one descriptor with each,
// and the wake-up of one that sleeps in poll().
//
// It wakes because an eventfd must not: O_NONBLOCK is the open file's, which a peer that shares it can clear and then
// fill the counter, so that our write sleeps. On a socket MSG_DONTWAIT is the call's. One descriptor a connection tells
// of wake-ups, records and the peer's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fastpath/shm/descriptor.h"

namespace bypass::fastpath::shm {

class Channel {
 public:
  enum class Sent : std::uint8_t { kSent, kFull, kGone };
  struct Received {
    enum class Kind : std::uint8_t { kNothing, kPacket, kWake, kGone } kind = Kind::kNothing;
    std::size_t bytes = 0;
    bool cut = false;   // a longer packet than there was room for
    bool many = false;  // more descriptors than one, or one that found no number free: all of them are closed
    Descriptor descriptor;
  };

  Channel() = default;
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}
  /// A new one, neither bound nor connected. It takes no descriptors until it is known who sends them; what a listener
  /// accepts inherits that.
  static Channel make();

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] bool is_open() const { return socket_.is_open(); }
  void close() { socket_.reset(); }
  /// In a forked child whose copy is closed already: forgets the number.
  void abandon() { socket_.abandon(); }

  /// At least two bytes: one is a wake-up. Never waits. `passed`: a descriptor that goes along, and stays ours.
  Sent send(std::span<const std::byte> packet, int passed = -1);
  /// The next packet. Never waits.
  Received receive(std::span<std::byte> room);
  /// Makes the peer's descriptor readable. One that is full is readable already.
  void wake() { wake(descriptor()); }
  /// The same by the number alone.
  static void wake(int descriptor);

  /// The effective user of the process that connected, or listened (SO_PEERCRED).
  [[nodiscard]] std::optional<std::uint32_t> peer_user() const;
  /// Its pid as it is known here; 0: it is of another pid namespace.
  [[nodiscard]] std::int32_t peer_process() const;
  /// Whether that process has ended, so that its pid may be another's (SO_PEERPIDFD, Linux 6.5; false before).
  [[nodiscard]] bool has_peer_ended() const;
  /// Whether that is our own.
  [[nodiscard]] bool is_of_our_user() const;
  /// From Linux 6.16 on (SO_PASSRIGHTS) a socket takes no descriptor until asked to: what a stranger sent would be
  /// closed by us, and closing can take as long as he likes (SO_LINGER).
  void take_descriptors(bool on);

 private:
  Descriptor socket_;
};

}  // namespace bypass::fastpath::shm
