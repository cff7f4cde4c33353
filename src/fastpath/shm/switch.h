// Switch: in which of its two carriers, the kernel's connection and the ring, each byte of one end's two directions
// lies. Counters and rules, no bytes and no system calls; it lies in memory that a family shares.
//
//   writing   kKernel ──cut()──► kRing ──resume(), stop_writing()──► kKernel
//                                  └──the reader says STOP──► kReturning: what it has not read goes over the kernel
//   reading   kKernel ──CUT, and the kernel's bytes before it are read──► kRing
//                 ▲──────RESUME, and the ring's bytes before it are read────┘
//                 ▲──────stop()──────────────────────────────────────────────┘
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
  // come to a RESUME: the writer may CUT again.
  kOpen = 0x316e706f'73737962U,
  kCut = 0x31747563'73737962U,  // `count` bytes have been written to the kernel's connection; the rest lies in the ring
  kResume = 0x316d7573'73737962U,  // behind `count` bytes of the ring the kernel's connection goes on
  kStop = 0x31707473'73737962U,   // of the ring, `count` bytes were read, and no more will be: the rest over the kernel
  kLeave = 0x3176656c'73737962U,  // a writer's that goes back for good: may the reader say STOP
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
  constexpr std::array kKnown{SwitchKind::kOpen, SwitchKind::kCut, SwitchKind::kResume, SwitchKind::kStop,
                              SwitchKind::kLeave};
  const bool known = std::find(kKnown.begin(), kKnown.end(), message.kind) != kKnown.end();
  return known ? std::optional(message) : std::nullopt;
}

// RESUME and STOP exclude each other: what the ring has behind STOP's count is sent over the kernel, which is too late
// once other bytes went there. Each side says first in the memory what it will say on the channel, and looks for the
// other's word; where both have spoken at once it is the writer who takes his back.

/// The writer's, before RESUME. False: STOP is on its way, and RESUME must not be said.
[[nodiscard]] bool claim_resume(const RingView& out);
/// RESUME was not said, or the direction moves to the ring again.
void end_resume(const RingView& out);
/// The reader's, before STOP. False: RESUME is on its way, or has come; what the ring has by now is all it will have.
[[nodiscard]] bool claim_stop(const RingView& in);

class Switch {
 public:
  enum class Tx : std::uint8_t { kKernel, kRing, kReturning };
  enum class Rx : std::uint8_t { kKernel, kRing };

  // --- Writing
  [[nodiscard]] Tx tx() const { return tx_; }
  /// Whether a direction that lies with the kernel may move: to be said by CUT{bytes written to the kernel}.
  [[nodiscard]] bool may_cut() const { return tx_ == Tx::kKernel && !tx_stopped_; }
  void cut() { tx_ = Tx::kRing; }
  /// Back for now. To be said before: RESUME{produced}. It may move again once the ring has been read to its end.
  void resume() { tx_ = Tx::kKernel; }
  /// Back for good. To be said before, of one that lies in the ring: RESUME{produced}.
  void stop_writing() { tx_ = Tx::kKernel, tx_stopped_ = true; }
  /// Whether what is written from now on goes over the kernel, whoever writes it.
  [[nodiscard]] bool has_stopped_writing() const { return tx_ == Tx::kKernel && tx_stopped_; }
  /// STOP has come, of a ring of so many bytes. False: it cannot be true.
  [[nodiscard]] bool on_stop(std::uint64_t read, const Producer& producer, std::uint64_t ring) {
    if (tx_ == Tx::kReturning || (tx_ == Tx::kRing && producer.produced() - read > ring)) return false;
    tx_stopped_ = true;
    if (tx_ != Tx::kRing) return read == producer.produced();
    return_at_ = read;
    return_end_ = producer.produced();
    returned_ = return_end_ - read;
    tx_ = return_at_ == return_end_ ? Tx::kKernel : Tx::kReturning;
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
    if (rx_ == Rx::kRing || bounded_) return false;
    bounded_ = true;
    kernel_left_ = left;
    settle();
    return true;
  }
  /// RESUME has come. False: it cannot be true.
  [[nodiscard]] bool on_resume(std::uint64_t at, const Consumer& consumer, std::uint64_t ring) {
    if (rx_stopped_) return true;
    if ((rx_ != Rx::kRing && !bounded_) || at - consumer.consumed() > ring) return false;
    ends_ = true;
    ring_end_ = at;
    return true;
  }
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
  [[nodiscard]] bool has_stopped_reading() const { return rx_stopped_ && rx_ == Rx::kKernel; }
  /// Whether RESUME has come, and the ring has not been read to there.
  [[nodiscard]] bool is_ending() const { return ends_; }
  /// Of `wanted` bytes, how many the kernel may be asked for.
  [[nodiscard]] std::uint64_t from_kernel(std::uint64_t wanted) const {
    return bounded_ && kernel_left_ < wanted ? kernel_left_ : wanted;
  }
  /// The kernel's bytes before a CUT that has come are not all read.
  [[nodiscard]] bool is_bounded() const { return bounded_; }
  /// Whether a CUT may come, and bytes in the kernel be behind it.
  [[nodiscard]] bool may_be_cut() const { return rx_ == Rx::kKernel && !rx_stopped_ && !bounded_; }
  void on_read_from_kernel(std::uint64_t bytes) {
    if (!bounded_) return;
    kernel_left_ -= bytes;
    settle();
  }
  /// After the ring has been read: whether the kernel's connection goes on now.
  bool on_read_from_ring(const Consumer& consumer) {
    if (rx_ != Rx::kRing || !ends_ || consumer.consumed() != ring_end_) return false;
    rx_ = Rx::kKernel;
    ends_ = false;
    return true;
  }
  /// With `bytes` more, all that the kernel has before a CUT that has come.
  [[nodiscard]] bool is_all_of_kernel(std::uint64_t bytes) const { return bounded_ && bytes == kernel_left_; }
  /// With `bytes` more, all that the ring has before a RESUME that has come.
  [[nodiscard]] bool is_all_of_ring(std::uint64_t bytes, const Consumer& consumer) const {
    return ends_ && consumer.consumed() + bytes == ring_end_;
  }
  /// Of `wanted` bytes, how many may be taken from the ring.
  [[nodiscard]] std::uint64_t from_ring(std::uint64_t wanted, const Consumer& consumer) const {
    const std::uint64_t left = ring_end_ - consumer.consumed();
    return ends_ && left < wanted ? left : wanted;
  }

 private:
  void settle() {
    if (!bounded_ || kernel_left_ != 0) return;
    bounded_ = false;
    rx_ = Rx::kRing;
  }

  Tx tx_ = Tx::kKernel;
  Rx rx_ = Rx::kKernel;
  bool tx_stopped_ = false, rx_stopped_ = false;
  bool bounded_ = false;  // kernel_left_ counts
  bool ends_ = false;     // ring_end_ counts
  std::uint64_t kernel_left_ = 0, ring_end_ = 0;
  std::uint64_t return_at_ = 0, return_end_ = 0, returned_ = 0;
};

}  // namespace bypass::fastpath::shm
