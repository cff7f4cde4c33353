// Link: what moves bytes into the peer's memory, and sends it messages. There are three kinds: `rc`
// (write-with-immediate on an RC queue pair), `shm` (copies through shared memory), `sim` (for tests).
//
// A Link is private to the process that opened it, as a Port is. Lanes and LinkEnd lie in the arena and are passed to
// it with each call. One virtual call moves a batch. The caller holds the shard's lock.
//
// What every link promises: writes take effect in order, within a batch and from batch to batch. A message is polled
// after its bytes, and all earlier writes of its lane, are in memory. When the link fails, any number of the last
// writes may have had no effect, or have changed memory without a message.
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
  /// The bytes, in two parts where the sender's buffer wraps. They must not change until the peer has said that they
  /// are placed. They must lie in the connection's buffer until the lane's last write is done, or the link is drained:
  /// if the peer says so too early, the device sends again whatever lies there then. If both are empty, the write is
  /// `small_length` bytes of `small`.
  std::span<const std::byte> from[2] = {};
  std::array<std::byte, 16> small{};
  std::uint8_t small_length = 0;
  bool notify = false;  // sends the peer a message with `immediate` and the number of bytes
  std::uint32_t immediate = 0;
  // no later write of that lane (our number) has bytes; Arrival::done_of reports its completion
  std::uint16_t last_of = kNoLane;

  [[nodiscard]] std::size_t size() const { return from[0].size() + from[1].size() + small_length; }
};

/// A message that has come: the immediate and the length of its write, as the device reports them. A link whose
/// messages lie in shared memory reads each once, so the peer cannot change them later.
struct Arrival {
  std::uint32_t immediate = 0;
  std::uint32_t length = 0;
  // if set, this is no message: that lane's last write is done, and all writes before it
  std::uint16_t done_of = kNoLane;
};

enum class LinkState : std::uint8_t {
  kUp,
  kFailed,   // takes no more writes; messages that came before may still be polled
  kDrained,  // poll() has returned the last message: counts are final
};

class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  [[nodiscard]] virtual LinkState state() const = 0;
  /// How many writes post() takes now. While it is 0, bytes gather in the send buffers and leave later as larger
  /// writes.
  [[nodiscard]] virtual std::size_t room() const = 0;
  /// Posts at most room() writes, with one doorbell.
  virtual void post(std::span<const Write> batch) = 0;
  /// False: post() has copied all bytes when it returns, and no Arrival reports a last write.
  [[nodiscard]] virtual bool reads_later() const { return true; }
  /// Fills `out` with the oldest messages; returns how many.
  virtual std::size_t poll(std::span<Arrival> out) = 0;
  /// From now on the next message makes wait_descriptor() readable. True: a message is there already; poll again.
  virtual bool arm() = 0;
  [[nodiscard]] virtual int wait_descriptor() const { return -1; }
  /// Ends the link from this side. May be called again. The peer finds out by itself.
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
