// Channel: a Unix socket (SOCK_SEQPACKET) to the process at the other end. It carries packets with at most one
// descriptor each, and it wakes a peer that sleeps in poll().
//
// The wake-up goes over a socket, because an eventfd is not safe. O_NONBLOCK belongs to the open file: a peer that
// shares an eventfd can clear the flag and then fill the counter, and our write would sleep. On a socket, MSG_DONTWAIT
// belongs to the call. One descriptor for each connection reports wake-ups, records and the peer's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fastpath/shm/rendezvous/descriptor.h"

namespace bypass::fastpath::shm {

class Channel {
 public:
  enum class Sent : std::uint8_t { kSent, kFull, kGone };
  struct Received {
    enum class Kind : std::uint8_t { kNothing, kPacket, kWake, kGone } kind = Kind::kNothing;
    std::size_t bytes = 0;
    bool cut = false;   // the packet was longer than the room
    bool many = false;  // more descriptors than one, or no free descriptor number; all of them are closed
    Descriptor descriptor;
  };

  Channel() = default;
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}
  /// A new socket, neither bound nor connected. It takes no descriptors until the sender is known; accepted sockets
  /// inherit that from a listener.
  static Channel make();

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] bool is_open() const { return socket_.is_open(); }
  void close() { socket_.reset(); }
  /// In a forked child whose copy is closed already: forgets the descriptor's number.
  void abandon() { socket_.abandon(); }

  /// Sends at least two bytes, as one byte is a wake-up. Never waits. `passed`: a descriptor that is sent along, and
  /// stays ours.
  Sent send(std::span<const std::byte> packet, int passed = -1);
  /// Receives the next packet. Never waits.
  Received receive(std::span<std::byte> room);
  /// Makes the peer's descriptor readable. If its queue is full, it is readable already.
  void wake() { wake(descriptor()); }
  /// The same, given only the descriptor's number.
  static void wake(int descriptor);

  /// The effective user of the process that connected or listened (SO_PEERCRED).
  [[nodiscard]] std::optional<std::uint32_t> peer_user() const;
  /// That process's pid in our pid namespace; 0: it is in another pid namespace.
  [[nodiscard]] std::int32_t peer_process() const;
  /// Whether that process has ended, so that another process may have its pid (SO_PEERPIDFD, Linux 6.5; false before).
  [[nodiscard]] bool has_peer_ended() const;
  /// Whether that process has our effective user.
  [[nodiscard]] bool is_of_our_user() const;
  /// Since Linux 6.16 (SO_PASSRIGHTS) a socket takes no descriptor until it is asked to. We would have to close what a
  /// stranger sends, and he decides how long closing takes (SO_LINGER).
  void take_descriptors(bool on);

 private:
  Descriptor socket_;
};

}  // namespace bypass::fastpath::shm
