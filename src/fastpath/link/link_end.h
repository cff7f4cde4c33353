// LinkEnd: one end of a link. It decides which lane writes next, and keeps the credits for messages.
//
// It lies in the arena. The Link beneath is private to a process and is passed in. Lanes are found by number through
// `lanes`, which the caller passes along:
//
//   Lane* find(std::uint16_t number);           null: no lane of that number is open
//   ByteSource source(std::uint16_t number);    its connection's send buffer
//   void for_each(f);                           f(Lane&) for every lane of this link
//
// A lane's turn is one write of at most kQuantum bytes; then the next lane has its turn. A message to a lane that does
// not exist, or without a credit, ends the link. A message that breaks its lane's rules ends that lane.
// Tests: tests/fastpath/link_test.cc, tests/fastpath/gather_test.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "fastpath/lane/lane.h"
#include "fastpath/lane/message.h"
#include "fastpath/lane/ring.h"
#include "fastpath/link/link.h"
#include "fastpath/reason.h"

namespace bypass::fastpath {

class LinkEnd {
 public:
  static constexpr std::uint64_t kQuantum = 32U << 10;
  static_assert(Lane::kGatheredAhead <= kQuantum, "what was gathered is one write");
  static constexpr std::size_t kBatch = 16;
  static constexpr std::uint32_t kWindow = 512;

  explicit LinkEnd(std::uint32_t window = kWindow, std::uint32_t reserve = MessageCredits::kControlReserve) {
    credits_.open(window, reserve);
  }

  [[nodiscard]] LinkState state() const { return state_; }
  /// Why the link is not up.
  [[nodiscard]] Reason reason() const { return reason_; }
  /// flush() has lanes to look at.
  [[nodiscard]] bool has_queue() const { return first_ != kNoLane; }

  // --- With a Link beneath
  /// Takes the messages that have come, and notices when the link has failed. `touched(number)` is called for each
  /// message to a lane. Returns the number of messages.
  template <typename Lanes, typename F>
  std::size_t poll(Link& link, Lanes& lanes, F&& touched);
  template <typename Lanes>
  void poll(Link& link, Lanes& lanes) {
    poll(link, lanes, [](std::uint16_t) {});
  }
  /// Does the same with messages that were polled already.
  template <typename Lanes, typename F>
  void take(std::span<const Arrival> arrivals, Lanes& lanes, F&& touched);
  /// The largest number of messages that one poll() takes.
  static constexpr std::size_t kMostArrivals = 2 * kBatch;
  /// Writes what is due, as far as there is room. `said(number)` is called for each message that carries no bytes, as
  /// the lane may be over with it. It is also called for each lane whose program waits for room that was found here.
  template <typename Lanes, typename F>
  void flush(Link& link, Lanes& lanes, F&& said);
  template <typename Lanes>
  void flush(Link& link, Lanes& lanes) {
    flush(link, lanes, [](std::uint16_t) {});
  }
  /// Puts a lane into the queue of flush(): its program has written or read, or a record or message has come.
  template <typename Lanes>
  void enqueue(std::uint16_t number, Lanes& lanes);
  /// To be called before a lane's number leaves `lanes`.
  template <typename Lanes>
  void dequeue(std::uint16_t number, Lanes& lanes);

  // --- For callers that deal with one lane alone
  /// Takes a message that brings bytes to that lane, or asks for credit, as poll() does. The caller then checks whether
  /// there is something to write (Lane::has_writes, has_own_write), and enqueues the lane if so. False: the message is
  /// another one, and on_arrival() must take it.
  template <typename Lanes>
  bool take_bytes(const Arrival& arrival, std::uint16_t number, Lanes& lanes);
  /// True if the link itself has something to write.
  [[nodiscard]] bool has_own_write() const { return credits_.has_much_news() || owes_credit_ || owes_pong_; }
  /// True if a lane would have its turn at once, and may make a message of its bytes.
  [[nodiscard]] bool may_write_now() const {
    return state_ == LinkState::kUp && !has_queue() && !has_own_write() && credits_.may_send_data();
  }
  /// Then writes what that lane, whose link has room, may write whole.
  template <typename Lanes>
  void write_now(Link& link, std::uint16_t number, Lanes& lanes);

  // --- The steps of these
  template <typename Lanes>
  void on_arrival(const Arrival& arrival, Lanes& lanes);
  /// The next write, if one is due. `memory` is the link's; `said` is as for flush().
  template <typename Lanes, typename F>
  bool next_write(std::span<const std::byte> memory, Lanes& lanes, Write& out, F&& said);
  template <typename Lanes>
  bool next_write(std::span<const std::byte> memory, Lanes& lanes, Write& out) {
    return next_write(memory, lanes, out, [](std::uint16_t) {});
  }
  template <typename Lanes>
  void fail(Reason why, Lanes& lanes);
  /// The link is drained: its counts are final.
  template <typename Lanes>
  void on_drained(Lanes& lanes);

 private:
  template <typename Lanes, typename F>
  bool next_lane_write(std::span<const std::byte> memory, Lanes& lanes, Write& out, bool& starved, F& said);
  template <typename Lanes>
  std::uint16_t pop(Lanes& lanes);
  template <typename Lanes>
  static void post(Link& link, Lanes& lanes, std::span<const Write> batch);
  [[nodiscard]] bool next_own_write(Write& out);
  [[nodiscard]] Reason look(std::span<const std::byte> memory);
  void on_own_message(Op op);
  static Write own_message(Op op);

  MessageCredits credits_;
  std::uint16_t first_ = kNoLane, last_ = kNoLane;  // lanes that may have something to write
  LinkState state_ = LinkState::kUp;
  Reason reason_ = Reason::kNone;
  bool blocked_told_ = false;  // the peer knows that we are out of credits
  bool owes_credit_ = false;   // the peer is out of credits, and asks for them
  bool owes_pong_ = false;
  std::uint8_t reserved_ = 0;
  std::uint16_t turn_ = kNoLane;  // the lane of the last write
  std::uint8_t reserved2_[4] = {};
};

// --- The queue

template <typename Lanes>
void LinkEnd::enqueue(std::uint16_t number, Lanes& lanes) {
  auto* lane = lanes.find(number);
  if (lane == nullptr || lane->queued != 0) return;
  lane->queued = 1;
  lane->next_ready = kNoLane;
  if (first_ == kNoLane) {
    first_ = number;
  } else {
    lanes.find(last_)->next_ready = number;
  }
  last_ = number;
}

template <typename Lanes>
std::uint16_t LinkEnd::pop(Lanes& lanes) {
  const std::uint16_t number = first_;
  auto* lane = lanes.find(number);
  first_ = lane->next_ready;
  if (first_ == kNoLane) last_ = kNoLane;
  lane->queued = 0;
  lane->next_ready = kNoLane;
  return number;
}

template <typename Lanes>
void LinkEnd::dequeue(std::uint16_t number, Lanes& lanes) {
  auto* lane = lanes.find(number);
  if (lane == nullptr || lane->queued == 0) return;
  std::uint16_t before = kNoLane;
  for (std::uint16_t at = first_; at != number; at = lanes.find(at)->next_ready) before = at;
  if (before == kNoLane) {
    pop(lanes);
    return;
  }
  lanes.find(before)->next_ready = lane->next_ready;
  if (last_ == number) last_ = before;
  lane->queued = 0;
  lane->next_ready = kNoLane;
}

// --- Writing

template <typename Lanes, typename F>
bool LinkEnd::next_lane_write(std::span<const std::byte> memory, Lanes& lanes, Write& out, bool& starved, F& said) {
  const std::uint16_t stop = last_;
  while (first_ != kNoLane) {
    const std::uint16_t number = pop(lanes);
    auto* lane = lanes.find(number);
    const LaneTurn turn{.memory = memory,
                        .source = lanes.source(number),
                        .most = kQuantum,
                        .may_send_data = credits_.may_send_data(),
                        .may_send_control = credits_.may_send_control()};
    bool lane_starved = false;
    const bool made = lane->next_write(turn, out, lane_starved);
    starved = starved || lane_starved;
    if (lane_starved || (made && lane->has_writes(memory)))
      enqueue(number, lanes);
    else if (lane->take_room_for_waiter())
      said(number);
    if (made) {
      turn_ = number;
      return true;
    }
    if (number == stop) return false;
  }
  return false;
}

template <typename Lanes, typename F>
bool LinkEnd::next_write(std::span<const std::byte> memory, Lanes& lanes, Write& out, F&& said) {
  if (state_ != LinkState::kUp) return false;
  turn_ = kNoLane;
  if (next_own_write(out)) return true;
  bool starved = false;
  bool made = next_lane_write(memory, lanes, out, starved, said);
  if (!made && starved) {
    if (const Reason why = look(memory); why != Reason::kNone) {
      fail(why, lanes);
      return false;
    }
    starved = false;
    made = next_lane_write(memory, lanes, out, starved, said);
  }
  if (made) {
    if (out.notify) credits_.on_sent();
    return true;
  }
  if (!starved || blocked_told_) return false;
  turn_ = kNoLane;
  blocked_told_ = true;
  out = own_message(Op::kLinkBlocked);
  return true;
}

static_assert(std::is_trivially_copyable_v<Write> && std::is_trivially_copyable_v<Arrival>);

template <typename Lanes>
void LinkEnd::post(Link& link, Lanes& lanes, std::span<const Write> batch) {
  link.post(batch);
  if (link.reads_later()) return;
  for (const Write& write : batch)
    if (write.last_of != kNoLane) lanes.find(write.last_of)->on_writes_done();
}

template <typename Lanes, typename F>
void LinkEnd::flush(Link& link, Lanes& lanes, F&& said) {
  // The array is not zeroed first: most turns make no write, or one.
  union Batch {
    Batch() {}
    std::array<Write, kBatch> writes;
  } batch;
  for (;;) {
    const std::size_t room = std::min(link.room(), kBatch);
    std::size_t n = 0;
    while (n < room && next_write(link.memory(), lanes, batch.writes[n], said)) {
      if (turn_ != kNoLane && batch.writes[n].notify && batch.writes[n].size() == 0) said(turn_);
      n++;
    }
    if (n != 0) post(link, lanes, std::span(batch.writes).first(n));
    if (n < kBatch) break;
  }
  if (state_ == LinkState::kFailed) link.fail();
}

template <typename Lanes>
void LinkEnd::write_now(Link& link, std::uint16_t number, Lanes& lanes) {
  const Write write = lanes.find(number)->write_whole(lanes.source(number));
  credits_.on_sent();
  post(link, lanes, {&write, 1});
}

// --- Reading

template <typename Lanes>
bool LinkEnd::take_bytes(const Arrival& arrival, std::uint16_t number, Lanes& lanes) {
  const Message message = to_message(arrival.immediate);
  const bool brings_bytes = message.op == Op::kData || message.op == Op::kDataBlocked;
  if (arrival.done_of != kNoLane || !brings_bytes || message.lane != number || state_ == LinkState::kDrained)
    return false;
  if (const Reason why = credits_.on_message(); why != Reason::kNone)
    fail(why, lanes);
  else
    lanes.find(number)->on_message(message, arrival.length);
  return true;
}

template <typename Lanes>
void LinkEnd::on_arrival(const Arrival& arrival, Lanes& lanes) {
  if (state_ == LinkState::kDrained) return;
  if (arrival.done_of != kNoLane) {
    if (auto* lane = lanes.find(arrival.done_of); lane != nullptr) lane->on_writes_done();
    return enqueue(arrival.done_of, lanes);
  }
  const Message message = to_message(arrival.immediate);
  if (is_known(message.op) && is_of_link(message.op)) return on_own_message(message.op);
  if (const Reason why = credits_.on_message(); why != Reason::kNone) return fail(why, lanes);
  auto* lane = lanes.find(message.lane);
  if (lane == nullptr) return fail(Reason::kUnknownLane, lanes);
  lane->on_message(message, arrival.length);
  enqueue(message.lane, lanes);
}

template <typename Lanes, typename F>
void LinkEnd::take(std::span<const Arrival> arrivals, Lanes& lanes, F&& touched) {
  for (const Arrival& arrival : arrivals) {
    on_arrival(arrival, lanes);
    const Message message = to_message(arrival.immediate);
    if (arrival.done_of != kNoLane)
      touched(arrival.done_of);
    else if (!is_of_link(message.op))
      touched(message.lane);
  }
}

template <typename Lanes, typename F>
std::size_t LinkEnd::poll(Link& link, Lanes& lanes, F&& touched) {
  // The array is not zeroed first: most looks find nothing.
  union Found {
    Found() {}
    std::array<Arrival, kMostArrivals> arrivals;
  } found;
  const std::size_t n = link.poll(found.arrivals);
  take(std::span(found.arrivals).first(n), lanes, touched);
  const LinkState state = link.state();
  if (state == LinkState::kUp) return n;
  fail(Reason::kLinkError, lanes);
  if (state == LinkState::kDrained) on_drained(lanes);
  return n;
}

// --- The end

template <typename Lanes>
void LinkEnd::fail(Reason why, Lanes& lanes) {
  if (state_ != LinkState::kUp) return;
  state_ = LinkState::kFailed;
  reason_ = why;
  lanes.for_each([](auto& lane) { lane.on_link_failed(); });
}

template <typename Lanes>
void LinkEnd::on_drained(Lanes& lanes) {
  if (state_ == LinkState::kDrained) return;
  state_ = LinkState::kDrained;
  lanes.for_each([](auto& lane) { lane.on_link_final(); });
}

}  // namespace bypass::fastpath
