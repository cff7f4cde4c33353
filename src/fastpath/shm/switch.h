// Switch: in which of its two carriers, the kernel's connection and the ring, each byte of one end's two directions
// lies. Counters and rules, no bytes and no system calls; it lies in memory that a family shares.
//
//   writing   kKernel ──cut()──► kRing ──resume(), or the reader says STOP──► kReturning ──sent──► kKernel
//   reading   kKernel ──CUT, and the kernel's bytes before it are read──► kRing
//                 ▲──────RESUME, or stop_reading()─────────────────────────┘
//
// Whichever end takes a direction back to the kernel, what was not read of the ring is sent over the kernel
// (kReturning) before anything else. So nothing is left in the ring that only its reader's process could get at, and
// the connection can be handed to anybody. What is still read of the ring after the writer has looked how far the
// reader is comes a second time, and is skipped there. A writer whose kernel has no room for it says RESUME behind what
// the ring has: that is read to there first.
//
// What is said on the channel is said before the first byte in the carrier that it announces, so a reader that finds a
// byte, or an end, where none is due has something to hear first. A direction that has stopped (STOP was said or heard)
// stays with the kernel.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "fastpath/shm/ring.h"

namespace bypass::fastpath::shm {

enum class SwitchKind : std::uint64_t {
  // The host's, once it knows that the guest has the memory: from now on the guest may CUT. And a reader's that has
  // read what a RESUME has sent again: the writer may CUT again.
  kOpen = 0x316e706f'73737962U,
  kCut = 0x31747563'73737962U,  // `count` bytes have been written to the kernel's connection; the rest lies in the ring
  kResume = 0x316d7573'73737962U,  // what the ring has behind `count` bytes, and all later, goes over the kernel
  kStop = 0x31707473'73737962U,  // of the ring, `count` bytes were read, and no more will be: the rest over the kernel
};

struct SwitchMessage {
  SwitchKind kind;
  std::uint64_t count;
};
static_assert(sizeof(SwitchMessage) == 16);

inline std::optional<SwitchMessage> parse_switch(std::span<const std::byte> packet) {
  SwitchMessage message{};
  if (packet.size() != sizeof message) return std::nullopt;
  std::memcpy(&message, packet.data(), sizeof message);
  constexpr std::array kKnown{SwitchKind::kOpen, SwitchKind::kCut, SwitchKind::kResume, SwitchKind::kStop};
  const bool known = std::find(kKnown.begin(), kKnown.end(), message.kind) != kKnown.end();
  return known ? std::optional(message) : std::nullopt;
}

// RESUME and STOP exclude each other: a reader that leaves for good must know what comes over the kernel, and where it
// begins. Each side says first in the memory what it will say on the channel, and looks for the other's word; where
// both have spoken at once, the writer takes its own back.

/// The writer's, before RESUME; `said` so far. False: STOP is on its way, and RESUME must not be said.
[[nodiscard]] bool claim_resume(const RingView& out, std::uint32_t said);
/// It could not be said.
void take_back_resume(const RingView& out, std::uint32_t said);
/// Whether the reader has said STOP, or is about to: there is something to hear.
[[nodiscard]] inline bool is_reader_stopping(const RingView& out) {
  return out.peer->stopped.load(std::memory_order_relaxed) != 0;  // beside the word that publish() looks at
}
/// The reader's, before STOP; `heard` so many RESUMEs. False: another one is on its way, and is to be heard first.
[[nodiscard]] bool claim_stop(const RingView& in, std::uint32_t heard);
/// It could not be said.
void take_back_stop(const RingView& in);

class Switch {
 public:
  enum class Tx : std::uint8_t { kKernel, kRing, kReturning };
  enum class Rx : std::uint8_t { kKernel, kRing };

  // --- Writing
  [[nodiscard]] Tx tx() const { return tx_; }
  /// Whether a direction that lies with the kernel may move: to be said by CUT{bytes written to the kernel}.
  [[nodiscard]] bool may_cut() const { return tx_ == Tx::kKernel && !tx_stopped_; }
  void cut() { tx_ = Tx::kRing; }
  /// Back. To be said before: RESUME{at}; what the ring has behind that is returned. It may move again once that has
  /// been read.
  void resume(std::uint64_t at, const Producer& producer) {
    resumes_said_++;
    give_back(at, producer.produced());
  }
  [[nodiscard]] std::uint32_t resumes_said() const { return resumes_said_; }
  /// It does not move again.
  void stop_writing() { tx_stopped_ = true; }
  /// The reader is gone, and with it what it has not read.
  void abandon_writing() {
    tx_stopped_ = true;
    if (tx_ == Tx::kRing) tx_ = Tx::kKernel;
  }
  /// The same, of a ring in which bytes are held back: they go where those go that are written from now on.
  void abandon_writing_but_held(const Producer& producer) {
    tx_stopped_ = true;
    if (tx_ == Tx::kRing) give_back(producer.published(), producer.produced());
  }
  /// Whether what is written from now on goes over the kernel, from any writer.
  [[nodiscard]] bool has_stopped_writing() const { return tx_ == Tx::kKernel && tx_stopped_; }
  /// STOP has come, of a ring of so many bytes. False: it cannot be true.
  [[nodiscard]] bool on_stop(std::uint64_t read, const Producer& producer, std::uint64_t ring) {
    if (stop_heard_ || (tx_ == Tx::kRing && producer.produced() - read > ring)) return false;
    stop_heard_ = tx_stopped_ = true;
    if (tx_ != Tx::kRing) return read == producer.produced();
    give_back(read, producer.produced());
    return true;
  }
  /// Of the ring, [return_at(), return_end()) is to be written to the kernel before anything else.
  [[nodiscard]] std::uint64_t return_at() const { return return_at_; }
  [[nodiscard]] std::uint64_t return_end() const { return return_end_; }
  /// Of the bytes that were ever put into the ring, those that the kernel has, too.
  [[nodiscard]] std::uint64_t returned() const { return returned_; }
  void on_returned(std::uint64_t bytes) {
    return_at_ += bytes;
    if (return_at_ == return_end_) tx_ = Tx::kKernel;
  }

  // --- Reading
  [[nodiscard]] Rx rx() const { return rx_; }
  /// CUT has come, and of the bytes before it `left` are still to be read from the kernel. False: out of turn.
  [[nodiscard]] bool on_cut(std::uint64_t left) {
    if (rx_stopped_) return true;
    if (rx_ == Rx::kRing || bounded_ || returned_left_ != 0) return false;
    bounded_ = true;
    kernel_left_ = left;
    settle();
    return true;
  }
  /// RESUME has come, of a ring of so many bytes, of which `produced` were written and `read` were read. False: it
  /// cannot be true.
  [[nodiscard]] bool on_resume(std::uint64_t at, std::uint64_t read, std::uint64_t produced, std::uint64_t ring) {
    if (rx_stopped_ || ends_ || (rx_ != Rx::kRing && !bounded_) || produced - at > ring) return false;
    const bool ahead = at - read <= ring;  // some of the ring is to be read yet
    if (!ahead && (bounded_ || read - at > ring)) return false;
    resumes_heard_++;
    ends_ = true;
    ring_end_ = ahead ? at : read;
    drop_ = produced - ring_end_;
    skip_ = ring_end_ - at;
    twice_ += produced - at;
    returned_left_ = produced - at;
    return true;
  }
  [[nodiscard]] std::uint32_t resumes_heard() const { return resumes_heard_; }
  /// Of the kernel's, so many bytes come first that were read from the ring.
  [[nodiscard]] std::uint64_t to_skip() const { return skip_; }
  /// Beside on_read_from_kernel().
  void on_skipped(std::uint64_t bytes) { skip_ -= bytes; }
  /// They do not come: the connection has ended before.
  void skip_none() { skip_ = 0; }
  /// Of the bytes that were ever read from the ring or dropped there, those that the kernel has brought, too.
  [[nodiscard]] std::uint64_t twice() const { return twice_; }
  /// Back for good, by our own wish: to be said by STOP{consumed}.
  void stop_reading() {
    rx_ = Rx::kKernel;
    rx_stopped_ = true;
    bounded_ = ends_ = false;
  }
  /// The same, and the ring is read to `at` first: said by STOP{at}, of all that it had.
  void stop_reading_behind(std::uint64_t at) {
    rx_stopped_ = ends_ = true;
    ring_end_ = at;
  }
  /// Whether it was said, and what is read now is the kernel's.
  [[nodiscard]] bool has_stopped_reading() const { return rx_stopped_ && rx_ == Rx::kKernel && !bounded_; }
  /// Whether the ring is still read to where the kernel's connection goes on.
  [[nodiscard]] bool is_ending() const { return ends_; }
  /// Whether STOP was said.
  [[nodiscard]] bool is_stopping_reading() const { return rx_stopped_; }
  /// Of `wanted` bytes, how many the kernel may be asked for.
  [[nodiscard]] std::uint64_t from_kernel(std::uint64_t wanted) const {
    return bounded_ && kernel_left_ < wanted ? kernel_left_ : wanted;
  }
  /// The kernel's bytes before a CUT that has come are not all read.
  [[nodiscard]] bool is_bounded() const { return bounded_; }
  /// Whether a CUT may come, and bytes in the kernel be behind it.
  [[nodiscard]] bool may_be_cut() const {
    return rx_ == Rx::kKernel && !rx_stopped_ && !bounded_ && returned_left_ == 0;
  }
  /// Whether a RESUME has come, and what it has sent again is not read: no CUT comes before that is said by OPEN.
  [[nodiscard]] bool is_returning() const { return returned_left_ != 0; }
  void on_read_from_kernel(std::uint64_t bytes) {
    if (!bounded_) {
      returned_left_ -= std::min(bytes, returned_left_);
      return;
    }
    kernel_left_ -= bytes;
    settle();
  }
  /// Of the ring, so many bytes behind what is read there come over the kernel: to be dropped with on_read_from_ring().
  [[nodiscard]] std::uint64_t to_drop() const { return drop_; }
  /// Whether bytes of the kernel's, that come next, were read from the ring already.
  [[nodiscard]] bool is_skipping() const { return skip_ != 0 && rx_ == Rx::kKernel && !bounded_; }
  /// After the ring has been read: whether the kernel's connection goes on now.
  bool on_read_from_ring(const Consumer& consumer) {
    if (rx_ != Rx::kRing || !ends_ || consumer.consumed() != ring_end_) return false;
    rx_ = Rx::kKernel;
    ends_ = false;
    drop_ = 0;
    return true;
  }
  /// With `bytes` more, all that the kernel has before a CUT that has come.
  [[nodiscard]] bool is_all_of_kernel(std::uint64_t bytes) const { return bounded_ && bytes == kernel_left_; }
  /// With `bytes` more, all that is read of the ring.
  [[nodiscard]] bool is_all_of_ring(std::uint64_t bytes, const Consumer& consumer) const {
    return ends_ && consumer.consumed() + bytes == ring_end_;
  }
  /// Of `wanted` bytes, how many may be taken from the ring.
  [[nodiscard]] std::uint64_t from_ring(std::uint64_t wanted, const Consumer& consumer) const {
    const std::uint64_t left = ring_end_ - consumer.consumed();
    return ends_ && left < wanted ? left : wanted;
  }

 private:
  void give_back(std::uint64_t from, std::uint64_t to) {
    return_at_ = from;
    return_end_ = to;
    returned_ += to - from;
    tx_ = from == to ? Tx::kKernel : Tx::kReturning;
  }
  void settle() {
    if (!bounded_ || kernel_left_ != 0) return;
    bounded_ = false;
    rx_ = Rx::kRing;
  }

  Tx tx_ = Tx::kKernel;
  Rx rx_ = Rx::kKernel;
  bool tx_stopped_ = false, rx_stopped_ = false;
  bool stop_heard_ = false;
  bool bounded_ = false;  // kernel_left_ counts
  bool ends_ = false;     // ring_end_ counts
  std::uint32_t resumes_said_ = 0, resumes_heard_ = 0;
  std::uint64_t kernel_left_ = 0, ring_end_ = 0;
  std::uint64_t skip_ = 0, drop_ = 0, twice_ = 0;
  std::uint64_t returned_left_ = 0;  // to be read from the kernel before the direction may move again
  std::uint64_t return_at_ = 0, return_end_ = 0, returned_ = 0;
};

}  // namespace bypass::fastpath::shm
