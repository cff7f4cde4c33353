// Scoreboard: what the sender knows about its flight, and what it should send next (RFC 6675).
//
// Sequence space between SND.UNA and SND.NXT, as the calculations see it:
//
//      una                  high_rxt             lost_edge                         nxt
//       |.........sacked.....|........sacked.......|........sacked..................|
//        lost, sent again     lost, to be sent      in flight
//
// RFC 6675's IsLost() is monotone: everything below a lost byte is lost too. So one edge replaces all per-byte marks,
// and one mark (HighRxt) shows what was sent again, because NextSeg() goes upwards. A timeout puts the edge at SND.NXT:
// go-back-N around what is SACKed, at the pace of cwnd.
//
// Connections without SACK use the same functions: duplicate ACKs count as segments that left (RFC 6582),
// and only the first segment is held to be lost.
//
// Ranges lie in a block of the arena that exists only while something is SACKed. Limits against a hostile peer: at most
// kMaxRanges ranges; an ACK costs one merge per block and one scan of the array (2 KiB). A block that would need one
// more range is ignored. That is safe: its bytes count as not arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/memory/memory.h"
#include "stack/tcp/seq.h"

namespace bypass::tcp {

class Scoreboard {
 public:
  static constexpr std::size_t kMaxRanges = 256;
  static constexpr unsigned kDupThresh = 3;  // RFC 5681's duplicate ACK threshold

  struct Update {
    std::uint32_t newly_sacked = 0;   // bytes
    std::uint32_t delivered = 0;      // bytes that this ACK shows to have arrived: what congestion control counts
    bool duplicate_reported = false;  // the first block was a DSACK (RFC 2883)
    SackBlock duplicate{};
    bool reneged = false;  // SND.UNA itself was SACKed before: the receiver threw those bytes away (RFC 2018 §8)
  };
  enum class Rule : std::uint8_t {  // of NextSeg(), RFC 6675 §4
    kNothing,
    kLost = 1,     // (1) a hole that is lost
    kNewData = 2,  // (2) beyond SND.NXT; the sender knows where
    kHole = 3,     // (3) a hole that is not known to be lost
    kRescue = 4,   // (4) the end of the flight, once a recovery
  };
  struct Segment {
    Rule rule = Rule::kNothing;
    SeqNum begin{};
    std::uint32_t length = 0;  // 0 with kNewData
  };

  /// Once the handshake is done. `sack`: both sides permit it.
  void start(SeqNum snd_una, bool sack);

  /// Takes every acceptable ACK: SND.UNA after it, SND.NXT, its SACK blocks. `duplicate`: it is a duplicate ACK by RFC
  /// 5681 §2 (same una, no data, same window, flight outstanding). With SACK a duplicate ACK counts only if it also
  /// brings new SACK information (RFC 6675 §2).
  Update on_ack(Memory& memory, SeqNum una, SeqNum nxt, std::span<const SackBlock> blocks, bool duplicate,
                std::uint32_t mss) {
    mss_ = static_cast<std::uint16_t>(mss);
    if (!clean() || duplicate || !blocks.empty()) return on_ack_in_loss(memory, una, nxt, blocks, duplicate);
    const std::uint32_t delivered = distance(una_, una);
    una_ = una;
    nxt_ = nxt;
    pipe_ = distance(una, nxt);
    return {.delivered = delivered};
  }

  /// Whether a loss event begins: kDupThresh duplicate ACKs or IsLost(SND.UNA) (RFC 6675 §5 step 1, 2). Never during
  /// recovery, nor until the point of the last recovery or timeout is acknowledged.
  [[nodiscard]] bool should_recover() const;
  /// Begins fast recovery up to `nxt`, RecoveryPoint; also without SACK.
  void enter_recovery(SeqNum nxt);
  /// True during recovery. When SND.UNA reaches the recovery point, on_ack() ends recovery by itself: ask before and
  /// after.
  [[nodiscard]] bool in_recovery() const { return phase_ == Phase::kRecovery; }
  /// True between a timeout and the ACK of everything then outstanding.
  [[nodiscard]] bool in_timeout() const { return phase_ == Phase::kTimeout; }
  [[nodiscard]] SeqNum recovery_point() const { return recovery_point_; }

  /// The retransmission timer expired: everything not SACKed is lost. SACK information is kept unless the
  /// receiver reneged (RFC 2018 §8, RFC 6675 §5.1).
  void on_timeout(Memory& memory, SeqNum nxt);
  /// The loss event or timeout was spurious: nothing counts as lost.
  void undo();

  /// Bytes in flight as RFC 6675's SetPipe() counts them. Without loss: nxt - una.
  [[nodiscard]] std::uint32_t pipe() const { return pipe_; }
  /// IsLost(): the byte is neither acknowledged nor SACKed and presumed lost.
  [[nodiscard]] bool is_lost(SeqNum s) const;
  [[nodiscard]] bool is_sacked(SeqNum s) const;
  [[nodiscard]] std::uint32_t sacked_bytes() const { return sacked_bytes_; }
  /// Bytes presumed lost and not sent again since.
  [[nodiscard]] std::uint32_t lost_bytes() const;
  /// For TCP_INFO, which also counts as lost what was sent again (lost_out and retrans_out of Linux). presumed_lost():
  /// bytes presumed lost. sent_again(): bytes sent again that the peer has not acknowledged.
  [[nodiscard]] std::uint32_t presumed_lost() const { return clean() ? 0 : unsacked(una_, lost_edge_); }
  [[nodiscard]] std::uint32_t sent_again() const {
    return clean() || phase_ == Phase::kOpen ? 0 : unsacked(una_, high_rxt_);
  }
  [[nodiscard]] unsigned duplicate_acks() const { return duplicate_acks_; }

  /// NextSeg(): what to send now that pipe < cwnd, at most `max_bytes`. Without loss: kNewData. `new_data`: the peer's
  /// window allows unsent bytes.
  [[nodiscard]] Segment next_segment(std::uint32_t max_bytes, std::uint32_t mss, bool new_data) const;
  /// The segment was sent: one that next_segment() returned, or a part from its begin on …
  void on_retransmitted(const Segment& segment);
  /// … or new data; also FIN and SYN, which take a sequence number.
  void on_sent(SeqNum begin, std::uint32_t length);

  /// Whether no state of loss is kept: true on the fast path.
  [[nodiscard]] bool clean() const {
    return phase_ == Phase::kOpen && count_ == 0 && duplicate_acks_ == 0 && !guarded_;
  }

  /// The connection is gone.
  void clear(Memory& memory);
  /// For Memory's rebuild: the block owned; null if there is no block.
  [[nodiscard]] const void* block() const { return ranges_; }
  /// For invariants: the rule that does not hold, or null.
  [[nodiscard]] const char* violated() const;

 private:
  enum class Phase : std::uint8_t { kOpen, kRecovery, kTimeout };

  Update on_ack_in_loss(Memory& memory, SeqNum una, SeqNum nxt, std::span<const SackBlock> blocks, bool duplicate);
  [[nodiscard]] bool is_outstanding(const SackBlock& block) const;
  void take_blocks(Memory& memory, std::span<const SackBlock> blocks, Update& update);
  std::uint32_t merge(Memory& memory, const SackBlock& block);
  std::uint32_t drop_acknowledged();
  void count_duplicate(std::uint32_t advanced, bool duplicate);
  void move_on(bool advanced);
  bool make_room(Memory& memory);
  void erase(std::size_t first, std::size_t last);
  void release_if_empty(Memory& memory);
  void recount();
  [[nodiscard]] SeqNum edge_by_sack() const;
  [[nodiscard]] std::uint32_t unsacked(SeqNum begin, SeqNum end) const;
  [[nodiscard]] SackBlock hole(SeqNum from, SeqNum limit) const;
  [[nodiscard]] Segment rescue(std::uint32_t mss) const;
  [[nodiscard]] std::size_t find(SeqNum s) const;

  SackBlock* ranges_ = nullptr;  // disjoint, not adjacent, rising
  std::uint16_t count_ = 0;
  std::uint16_t capacity_ = 0;
  SeqNum una_{}, nxt_{};
  // Without loss these five are stale, maybe by more than half the sequence space.
  SeqNum high_rxt_{};        // after the highest byte sent again since the loss event or timeout
  SeqNum lost_edge_{};       // everything below that is not SACKed is lost
  SeqNum forced_edge_{};     // the part that does not follow from SACK: a timeout, or the first segment of a recovery
  SeqNum recovery_point_{};  // SND.NXT when it began
  SeqNum rescue_point_{};    // RescueRxt: a rescue is due once SND.UNA is beyond it
  std::uint32_t pipe_ = 0;
  std::uint32_t sacked_bytes_ = 0;
  std::uint16_t duplicate_acks_ = 0;
  std::uint16_t mss_ = 0;
  Phase phase_ = Phase::kOpen;
  bool sack_ = false;
  bool reneged_ = false;
  bool guarded_ = false;  // RFC 6582 §4: no new recovery before recovery_point_ is passed
};
static_assert(sizeof(Scoreboard) <= 64);

}  // namespace bypass::tcp
