// The scoreboard against the literal definitions of RFC 6675, byte by byte, and against a receiver over a wire that
// loses, duplicates and reorders.
#include <algorithm>
#include <deque>
#include <vector>

#include "stack/tcp/input/reassembly.h"
#include "stack/tcp/output/sack_scoreboard.h"
#include "stack/tcp_parts/fixture.h"

namespace bypass::tcp {
namespace {

constexpr std::uint32_t kMss = 10;

/// One bool for each byte: quadratic and obvious.
struct Model {
  std::uint32_t una = 0, nxt = 0, high_rxt = 0, forced = 0;
  bool recovering = false;
  std::vector<bool> sacked = std::vector<bool>(2000);

  [[nodiscard]] bool is_lost(std::uint32_t s) const {
    if (sacked[s]) return false;
    if (s < forced) return true;
    std::uint32_t runs = 0, bytes = 0;
    for (std::uint32_t i = s + 1; i < nxt; i++) {
      bytes += sacked[i];
      runs += sacked[i] && !sacked[i - 1];
    }
    return runs >= Scoreboard::kDupThresh || bytes > (Scoreboard::kDupThresh - 1) * kMss;
  }
  [[nodiscard]] std::uint32_t pipe() const {
    std::uint32_t bytes = 0;
    for (std::uint32_t s = una; s < nxt; s++) {
      if (sacked[s]) continue;
      if (!is_lost(s)) bytes++;
      if (recovering && s < high_rxt) bytes++;
    }
    return bytes;
  }
  /// The first byte of rule (1), or of rule (3) when `lost` is false; nxt if there is none.
  [[nodiscard]] std::uint32_t candidate(bool lost) const {
    std::uint32_t highest = una;
    for (std::uint32_t s = una; s < nxt; s++)
      if (sacked[s]) highest = s;
    for (std::uint32_t s = std::max(una, high_rxt); s < nxt; s++)
      if (!sacked[s] && (lost ? is_lost(s) : s < highest)) return s;
    return nxt;
  }
};

class Pair {
 public:
  explicit Pair(std::uint32_t seed) : random_(seed) {
    board_.start(kBase, true);
    send(400);
  }
  ~Pair() { board_.clear(*arena_); }

  void step() {
    switch (random_.below(4)) {
      case 0:
        ack();
        break;
      case 1:
      case 2:
        sack();
        break;
      default:
        transmit();
    }
    compare();
  }
  [[nodiscard]] bool done() const { return model_.nxt >= 1900; }

 private:
  static constexpr SeqNum kBase{0xfffffe00};

  void send(std::uint32_t bytes) {
    board_.on_sent(kBase + model_.nxt, bytes);
    model_.nxt += bytes;
  }
  void tell(std::span<const SackBlock> blocks) {
    board_.on_ack(*arena_, kBase + model_.una, kBase + model_.nxt, blocks, true, kMss);
  }
  void ack() {
    if (model_.una == model_.nxt) return;
    std::uint32_t to = model_.una + random_.between(1, std::min(model_.nxt - model_.una, 40U));
    while (to < model_.nxt && model_.sacked[to]) to++;  // an honest receiver acknowledges what it has
    model_.una = to;
    model_.forced = std::max(model_.forced, to);
    if (model_.recovering) model_.high_rxt = std::max(model_.high_rxt, to);
    tell({});
    if (model_.recovering && !board_.in_recovery()) leave();
  }
  void leave() {
    model_.recovering = false;
    model_.high_rxt = 0;
    model_.forced = model_.una;
  }
  void sack() {
    if (model_.nxt - model_.una < 2) return;
    const std::uint32_t begin = random_.between(model_.una + 1, model_.nxt - 1);
    const std::uint32_t end = begin + random_.between(1, std::min(model_.nxt - begin, 30U));
    std::fill(model_.sacked.begin() + begin, model_.sacked.begin() + end, true);
    const SackBlock block{kBase + begin, kBase + end};
    tell({&block, 1});
  }
  void transmit() {
    if (board_.should_recover()) {
      ASSERT_TRUE(model_.is_lost(model_.una) || board_.duplicate_acks() >= Scoreboard::kDupThresh);
      board_.enter_recovery(kBase + model_.nxt);
      model_.recovering = true;
      model_.high_rxt = model_.una;
      model_.forced = std::min(model_.una + kMss, model_.nxt);
    }
    const bool new_data = random_.chance(30);
    const auto segment = board_.next_segment(random_.between(1, 25), kMss, new_data);
    const std::uint32_t at = distance(kBase, segment.begin);
    if (segment.rule == Scoreboard::Rule::kLost || segment.rule == Scoreboard::Rule::kHole) {
      ASSERT_EQ(at, model_.candidate(segment.rule == Scoreboard::Rule::kLost));
      model_.high_rxt = at + segment.length;
    } else if (model_.recovering) {
      ASSERT_EQ(model_.candidate(true), model_.nxt);
    }
    if (segment.rule == Scoreboard::Rule::kNewData)
      send(random_.between(1, 25));
    else if (segment.rule != Scoreboard::Rule::kNothing)
      board_.on_retransmitted(segment);
  }
  void compare() {
    ASSERT_EQ(board_.violated(), nullptr);
    ASSERT_EQ(board_.pipe(), model_.pipe());
    for (int i = 0; i < 5 && model_.una < model_.nxt; i++) {
      const std::uint32_t s = random_.between(model_.una, model_.nxt - 1);
      ASSERT_EQ(board_.is_sacked(kBase + s), model_.sacked[s]);
      ASSERT_EQ(board_.is_lost(kBase + s), model_.is_lost(s));
    }
  }

  Arena arena_;
  Random random_;
  Scoreboard board_;
  Model model_;
};

TEST(ScoreboardModel, RandomAcks_AgreeWithTheDefinitions) {
  for (std::uint32_t seed = 0; seed < 15; seed++) {
    SCOPED_TRACE(seed);
    Pair pair(seed);
    for (int i = 0; i < 250 && !pair.done() && !testing::Test::HasFatalFailure(); i++) pair.step();
  }
}

/// A sender with a fixed window, a receiver with a reassembly queue, and a bad wire both ways.
class Transfer {
 public:
  Transfer(std::uint32_t seed, bool sack, std::uint32_t loss, std::uint32_t reorder = 10)
      : random_(seed), sack_(sack), loss_(loss), reorder_(reorder) {
    board_.start(kBase, sack);
  }
  ~Transfer() {
    board_.clear(*arena_);
    pool_.release(queue_.clear(*arena_));
    EXPECT_EQ(pool_.out(), 0U);
  }

  /// Runs rounds until all bytes have arrived.
  unsigned run(std::uint32_t bytes) {
    end_ = kBase + bytes;
    unsigned rounds = 0;
    for (; una_ != end_ && rounds < 20000; rounds++) {
      const bool idle = wire_.empty() && acks_.empty();
      if (idle && una_ != nxt_) board_.on_timeout(*arena_, nxt_);
      transmit();
      deliver();
      take_acks();
      EXPECT_EQ(board_.violated(), nullptr);
      EXPECT_EQ(queue_.violated(rcv_nxt_), nullptr);
    }
    return rounds;
  }
  [[nodiscard]] bool whole() const { return rcv_nxt_ == end_ && una_ == end_; }
  [[nodiscard]] std::uint32_t retransmitted() const { return retransmitted_; }

 private:
  static constexpr SeqNum kBase{0xfffff000};
  static constexpr std::uint32_t kWindow = 30 * kMss;
  struct Ack {
    SeqNum una;
    std::vector<SackBlock> blocks;
  };

  void transmit() {
    while (board_.pipe() < kWindow) {
      const std::uint32_t unsent = distance(nxt_, end_);
      const bool new_data = unsent != 0 && distance(una_, nxt_) < 4 * kWindow;
      auto segment = board_.next_segment(kMss, kMss, new_data);
      if (segment.rule == Scoreboard::Rule::kNothing) return;
      if (segment.rule == Scoreboard::Rule::kNewData) {
        segment.begin = nxt_;
        segment.length = std::min(unsent, kMss);
        board_.on_sent(nxt_, segment.length);
        nxt_ += segment.length;
      } else {
        board_.on_retransmitted(segment);
        retransmitted_ += segment.length;
      }
      ASSERT_LE(segment.length, kMss);
      ASSERT_TRUE(after_or_at(segment.begin, una_) && before_or_at(segment.begin + segment.length, nxt_));
      wire_.push_back({segment.begin, segment.begin + segment.length});
    }
  }
  void deliver() {
    for (std::uint32_t n = random_.between(1, 8); n != 0 && !wire_.empty(); n--) {
      const std::size_t at = random_.chance(reorder_) ? random_.below(static_cast<std::uint32_t>(wire_.size())) : 0;
      const SackBlock segment = wire_[at];
      if (!random_.chance(3)) wire_.erase(wire_.begin() + static_cast<std::ptrdiff_t>(at));
      if (!random_.chance(loss_)) receive(segment);
    }
  }
  void receive(const SackBlock& segment) {
    if (after(segment.begin, rcv_nxt_)) {
      const auto result = queue_.insert(*arena_, pool_.make(segment.begin, segment.size()), {1 << 20, 1000});
      pool_.release(result.release);
    } else if (after(segment.end, rcv_nxt_)) {
      rcv_nxt_ = segment.end;
      const auto ready = queue_.advance(*arena_, rcv_nxt_);
      rcv_nxt_ += ready.bytes;
      pool_.release(ready.frames);
      pool_.release(ready.release);
    } else {
      queue_.note_duplicate(segment.begin, segment.end);
    }
    SackBlock blocks[3];
    const std::size_t n = sack_ ? queue_.take_sack_blocks(blocks) : 0;
    if (!random_.chance(loss_)) acks_.push_back({rcv_nxt_, {blocks, blocks + n}});
  }
  void take_acks() {
    for (; !acks_.empty(); acks_.pop_front()) {
      const Ack& ack = acks_.front();
      if (before(ack.una, una_)) continue;
      const bool duplicate = ack.una == una_ && una_ != nxt_;
      una_ = ack.una;
      board_.on_ack(*arena_, una_, nxt_, ack.blocks, duplicate, kMss);
      if (board_.should_recover()) board_.enter_recovery(nxt_);
      transmit();
    }
  }

  Arena arena_;
  FramePool pool_;
  Random random_;
  Scoreboard board_;
  Reassembly queue_;
  std::deque<SackBlock> wire_;
  std::deque<Ack> acks_;
  SeqNum una_ = kBase, nxt_ = kBase, rcv_nxt_ = kBase, end_{};
  std::uint32_t retransmitted_ = 0;
  bool sack_;
  std::uint32_t loss_, reorder_;  // percent
};

TEST(ScoreboardModel, LossyTransfers_Complete) {
  for (bool sack : {true, false}) {
    for (std::uint32_t loss : {0U, 2U, 10U, 30U}) {
      for (std::uint32_t seed = 0; seed < 4; seed++) {
        SCOPED_TRACE(testing::Message() << "sack " << sack << ", loss " << loss << " %, seed " << seed);
        Transfer transfer(seed, sack, loss);
        transfer.run(8000);
        ASSERT_TRUE(transfer.whole());
      }
    }
  }
}

TEST(ScoreboardModel, FewLosses_FewRetransmissions) {
  std::uint32_t again = 0;
  for (std::uint32_t seed = 0; seed < 10; seed++) {
    Transfer transfer(seed, true, 2, 0);
    transfer.run(8000);
    again += transfer.retransmitted();
  }
  // 2 % of 80,000 bytes are lost, and some of them twice.
  EXPECT_LT(again, 80'000 * 4 / 100);
}

}  // namespace
}  // namespace bypass::tcp
