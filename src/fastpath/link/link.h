// Link: what moves bytes into the peer's memory, and says so there. Three of them: `rc` (write-with-immediate on an RC
// queue pair), `shm` (copies into a shared page), `sim` (for tests).
//
// A Link is private to the process that opened it, as a Port is; lanes and LinkEnd, which lie in the arena, are handed
// to it call by call. One virtual call moves a batch. Called with the shard's lock held.
//
// What every link promises: writes of one batch, and of one batch after the other, take effect in their order; a
// message is polled after its bytes and all earlier writes of its lane are in memory. When it fails, any number of the
// last writes may have had no effect, or have changed memory without a message.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/lane/message.h"

namespace bypass::fastpath {

/// One write into the peer's memory.
struct Write {
  std::uint64_t to = 0;  // offset in the memory that the peer has opened to this link
  /// The bytes: two parts where the sender's buffer wraps. They stay as they are until the peer has said that they are
  /// placed, and lie in its connection's buffer until the lane's last write is done, or the link is drained: a peer
  /// that says so too early makes the device send again what lies there by then. Both empty: `small_length` bytes of
  /// `small`.
  std::span<const std::byte> from[2] = {};
  std::array<std::byte, 16> small{};
  std::uint8_t small_length = 0;
  bool notify = false;  // a message at the peer: with `immediate`, and the number of bytes
  std::uint32_t immediate = 0;
  std::uint16_t last_of = kNoLane;  // none of that lane (our number) behind it has bytes: Arrival::done_of tells of it

  [[nodiscard]] std::size_t size() const { return from[0].size() + from[1].size() + small_length; }
};

/// A message that has come: the immediate, and the length of its write, as the device has them (not as the peer's
/// memory has them: a link whose messages lie in shared memory reads each once).
struct Arrival {
  std::uint32_t immediate = 0;
  std::uint32_t length = 0;
  std::uint16_t done_of = kNoLane;  // else no message: that lane's write that was its last is done, and all before it
};

enum class LinkState : std::uint8_t {
  kUp,
  kFailed,   // takes no more writes; messages that came before may still be polled
  kDrained,  // poll() has returned the last message there will ever be: counts are final
};

class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  [[nodiscard]] virtual LinkState state() const = 0;
  /// Writes that post() takes now. While it is 0, bytes gather in the send buffers and leave as larger writes later.
  [[nodiscard]] virtual std::size_t room() const = 0;
  /// Posts at most room() writes, with one doorbell.
  virtual void post(std::span<const Write> batch) = 0;
  /// False: post() has copied all bytes when it returns, and no Arrival tells of a last one.
  [[nodiscard]] virtual bool reads_later() const { return true; }
  /// The oldest messages; returns how many.
  virtual std::size_t poll(std::span<Arrival> out) = 0;
  /// From now on the next message makes wait_descriptor() readable. True: one is there already; poll again.
  virtual bool arm() = 0;
  [[nodiscard]] virtual int wait_descriptor() const { return -1; }
  /// Ends it from this side. May be called again. The peer finds out by itself.
  virtual void fail() = 0;
  /// The memory that the peer writes.
  [[nodiscard]] virtual std::span<const std::byte> memory() const = 0;
};

/// The first bytes of a link's memory; rings and credit blocks lie behind them.
struct LinkBlock {
  std::uint64_t messages_returned = 0;
  std::uint64_t reserved[7] = {};
};
static_assert(sizeof(LinkBlock) == 64);

}  // namespace bypass::fastpath
