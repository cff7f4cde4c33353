// CarrierSwitch: which of its two carriers, the kernel's connection or the ring, has each byte of one end's two
// directions. It has counters and rules, no bytes and no system calls. It lies in memory that a family shares.
//
//   writing   kKernel ──cut()──► kRing ──resume(), or the reader says STOP──► kReturning ──sent──► kKernel
//   reading   kKernel ──CUT, and the kernel's bytes before it are read──► kRing
//                 ▲──────RESUME, or stop_reading()─────────────────────────┘
//
// Either end may take a direction back to the kernel. Then the unread bytes of the ring are sent over the kernel
// (kReturning) before anything else. So the ring holds nothing that only its reader's process could reach, and the
// connection can be handed to any process. The reader may still read some of these bytes from the ring after the writer
// has looked at its index. Such bytes come a second time over the kernel and are skipped there. If the writer's kernel
// has no room for the bytes, RESUME names the end of the ring's bytes: the reader reads up to there first.
//
// A message on the channel is sent before the first byte in the carrier that it announces. So a reader that finds an
// unexpected byte, or an unexpected end, has a message to read first. A direction that has stopped (STOP was sent or
// received) stays with the kernel.
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
  // From the host, once it knows that the guest has the memory: from now on the guest may CUT. Also from a reader that
  // has read what a RESUME has sent again: the writer may CUT again.
  kOpen = 0x316e706f'73737962U,
  kCut = 0x31747563'73737962U,     // `count` bytes were written to the kernel's connection; the rest lies in the ring
  kResume = 0x316d7573'73737962U,  // the ring's bytes after `count`, and all later ones, go over the kernel
  // `count` bytes of the ring were read, and no more will be; the rest goes over the kernel
  kStop = 0x31707473'73737962U,
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
// begins. Each side stores in the memory what it is about to send on the channel, and then reads the other's word. If
// both ask at once, the writer withdraws.

/// For the writer, before RESUME; `said` RESUMEs were sent so far. False: STOP is on its way, and RESUME must not be
/// sent.
[[nodiscard]] bool claim_resume(const RingView& out, std::uint32_t said);
/// The RESUME could not be sent.
void take_back_resume(const RingView& out, std::uint32_t said);
/// Whether the reader has sent STOP, or is about to: then there is a message to read.
[[nodiscard]] inline bool is_reader_stopping(const RingView& out) {
  return out.peer->stopped.load(std::memory_order_relaxed) != 0;  // beside the word that publish() looks at
}
/// For the reader, before STOP; `heard` RESUMEs have come. False: another RESUME is on its way, and must be read first.
[[nodiscard]] bool claim_stop(const RingView& in, std::uint32_t heard);
/// The STOP could not be sent.
void take_back_stop(const RingView& in);

class CarrierSwitch {
 public:
  enum class Tx : std::uint8_t { kKernel, kRing, kReturning };
  enum class Rx : std::uint8_t { kKernel, kRing };

  // --- Writing
  [[nodiscard]] Tx tx() const { return tx_; }
  /// Whether a direction that lies with the kernel may move. The move is announced by CUT{bytes written to the kernel}.
  [[nodiscard]] bool may_cut() const { return tx_ == Tx::kKernel && !tx_stopped_; }
  void cut() { tx_ = Tx::kRing; }
  /// Takes the direction back. RESUME{at} must be sent before. The ring's bytes after `at` are sent over the kernel.
  /// The direction may move again once the reader has read them.
  void resume(std::uint64_t at, const Producer& producer) {
    resumes_said_++;
    give_back(at, producer.produced());
  }
  [[nodiscard]] std::uint32_t resumes_said() const { return resumes_said_; }
  /// The direction will not move again.
  void stop_writing() { tx_stopped_ = true; }
  /// The reader is gone, and the bytes that it has not read are lost.
  void abandon_writing() {
    tx_stopped_ = true;
    if (tx_ == Tx::kRing) tx_ = Tx::kKernel;
  }
  /// The same for a ring in which bytes are held back: these go where later writes go.
  void abandon_writing_but_held(const Producer& producer) {
    tx_stopped_ = true;
    if (tx_ == Tx::kRing) give_back(producer.published(), producer.produced());
  }
  /// Whether all later bytes, from any writer, go over the kernel.
  [[nodiscard]] bool has_stopped_writing() const { return tx_ == Tx::kKernel && tx_stopped_; }
  /// STOP has come, for a ring of `ring` bytes. False: its number is impossible.
  [[nodiscard]] bool on_stop(std::uint64_t read, const Producer& producer, std::uint64_t ring) {
    if (stop_heard_ || (tx_ == Tx::kRing && producer.produced() - read > ring)) return false;
    stop_heard_ = tx_stopped_ = true;
    if (tx_ != Tx::kRing) return read == producer.produced();
    give_back(read, producer.produced());
    return true;
  }
  /// The ring's bytes [return_at(), return_end()) must be written to the kernel before anything else.
  [[nodiscard]] std::uint64_t return_at() const { return return_at_; }
  [[nodiscard]] std::uint64_t return_end() const { return return_end_; }
  /// How many of all bytes put into the ring were also given to the kernel.
  [[nodiscard]] std::uint64_t returned() const { return returned_; }
  void on_returned(std::uint64_t bytes) {
    return_at_ += bytes;
    if (return_at_ == return_end_) tx_ = Tx::kKernel;
  }

  // --- Reading
  [[nodiscard]] Rx rx() const { return rx_; }
  /// CUT has come; `left` bytes before it are still to be read from the kernel. False: it came at the wrong time.
  [[nodiscard]] bool on_cut(std::uint64_t left) {
    if (rx_stopped_) return true;
    if (rx_ == Rx::kRing || bounded_ || returned_left_ != 0) return false;
    bounded_ = true;
    kernel_left_ = left;
    settle();
    return true;
  }
  /// RESUME has come, for a ring of `ring` bytes of which `produced` were written and `read` were read. False: its
  /// number is impossible.
  [[nodiscard]] bool on_resume(std::uint64_t at, std::uint64_t read, std::uint64_t produced, std::uint64_t ring) {
    if (rx_stopped_ || ends_ || (rx_ != Rx::kRing && !bounded_) || produced - at > ring) return false;
    const bool ahead = at - read <= ring;  // some of the ring must still be read
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
  /// So many of the kernel's next bytes were read from the ring already.
  [[nodiscard]] std::uint64_t to_skip() const { return skip_; }
  /// So many of them were read from the kernel and skipped; on_read_from_kernel() counts them as well.
  void on_skipped(std::uint64_t bytes) { skip_ -= bytes; }
  /// The bytes to skip do not come: the connection has ended before.
  void skip_none() { skip_ = 0; }
  /// How many bytes, of all that were read from the ring or dropped there, the kernel has also brought.
  [[nodiscard]] std::uint64_t twice() const { return twice_; }
  /// Takes the direction back for good, by this end's own decision, which STOP{consumed} announces.
  void stop_reading() {
    rx_ = Rx::kKernel;
    rx_stopped_ = true;
    bounded_ = ends_ = false;
  }
  /// The same, but the ring is first read up to `at`. STOP{at} announces it for the whole ring.
  void stop_reading_behind(std::uint64_t at) {
    rx_stopped_ = ends_ = true;
    ring_end_ = at;
  }
  /// Whether STOP was sent and the next bytes come from the kernel.
  [[nodiscard]] bool has_stopped_reading() const { return rx_stopped_ && rx_ == Rx::kKernel && !bounded_; }
  /// Whether the ring is still read, up to the place where the kernel's connection goes on.
  [[nodiscard]] bool is_ending() const { return ends_; }
  /// Whether STOP was sent.
  [[nodiscard]] bool is_stopping_reading() const { return rx_stopped_; }
  /// How many of `wanted` bytes may be read from the kernel.
  [[nodiscard]] std::uint64_t from_kernel(std::uint64_t wanted) const {
    return bounded_ && kernel_left_ < wanted ? kernel_left_ : wanted;
  }
  /// True if not all of the kernel's bytes before a CUT that has come were read.
  [[nodiscard]] bool is_bounded() const { return bounded_; }
  /// Whether a CUT may come, so that bytes in the kernel may lie after it.
  [[nodiscard]] bool may_be_cut() const {
    return rx_ == Rx::kKernel && !rx_stopped_ && !bounded_ && returned_left_ == 0;
  }
  /// Whether a RESUME has come and its bytes are not all read. No CUT comes before OPEN reports that they are read.
  [[nodiscard]] bool is_returning() const { return returned_left_ != 0; }
  void on_read_from_kernel(std::uint64_t bytes) {
    if (!bounded_) {
      returned_left_ -= std::min(bytes, returned_left_);
      return;
    }
    kernel_left_ -= bytes;
    settle();
  }
  /// So many bytes of the ring, after what is read there, come over the kernel. They are dropped at
  /// on_read_from_ring().
  [[nodiscard]] std::uint64_t to_drop() const { return drop_; }
  /// Whether the kernel's next bytes were read from the ring already.
  [[nodiscard]] bool is_skipping() const { return skip_ != 0 && rx_ == Rx::kKernel && !bounded_; }
  /// To be called after the ring was read. True: the kernel's connection goes on now.
  bool on_read_from_ring(const Consumer& consumer) {
    if (rx_ != Rx::kRing || !ends_ || consumer.consumed() != ring_end_) return false;
    rx_ = Rx::kKernel;
    ends_ = false;
    drop_ = 0;
    return true;
  }
  /// Whether `bytes` more are all that the kernel has before a CUT that has come.
  [[nodiscard]] bool is_all_of_kernel(std::uint64_t bytes) const { return bounded_ && bytes == kernel_left_; }
  /// Whether `bytes` more are all that is read from the ring.
  [[nodiscard]] bool is_all_of_ring(std::uint64_t bytes, const Consumer& consumer) const {
    return ends_ && consumer.consumed() + bytes == ring_end_;
  }
  /// How many of `wanted` bytes may be taken from the ring.
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
  bool bounded_ = false;  // kernel_left_ is valid
  bool ends_ = false;     // ring_end_ is valid
  std::uint32_t resumes_said_ = 0, resumes_heard_ = 0;
  std::uint64_t kernel_left_ = 0, ring_end_ = 0;
  std::uint64_t skip_ = 0, drop_ = 0, twice_ = 0;
  std::uint64_t returned_left_ = 0;  // bytes to be read from the kernel before the direction may move again
  std::uint64_t return_at_ = 0, return_end_ = 0, returned_ = 0;
};

}  // namespace bypass::fastpath::shm
