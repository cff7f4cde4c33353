// The world that the checker explores: two ends of one connection (the lane's own code, and the link end's), TCP
// beneath as two queues of records, and two links, of which each may die at any moment and lose any number of its last
// writes: an end fails when it likes, and what has not come when its count becomes final never does.
//
// An end acts when something wakes it: its program, a record, a message, the link's failure. A write without a message
// wakes nobody, as on a real link: credits that are told silently and never asked for would be seen as a deadlock.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "fastpath/checker.h"
#include "fastpath/lane/lane_impl.h"
#include "fastpath/lane/lane_link_impl.h"
#include "fastpath/link/link_end.h"

namespace bypass::fastpath::test {

/// What is explored.
struct Bounds {
  std::array<std::uint8_t, 2> bytes = {};  // that each end writes
  std::uint8_t links = 1;
  std::uint8_t ring_log2 = 1;
  std::uint8_t tcp_window = 2;
  std::uint8_t window = 8, reserve = 2;  // message credits
  bool may_die = true;
  bool late_messages = false;  // messages go on coming when the count is final
  bool fin_apart = false;      // the end is written some time after the last byte, not with it
  bool may_leave = false;
  bool may_abort = false;
  bool gathers = false;        // little writes wait for the peer's word
  bool gathers_ahead = false;  // likewise, where the peer is far behind: Rules::kAhead
  bool late_devices = false;   // a device says of a lane's last write when it likes that it is done
  bool places = false;         // connections go, and give their lanes' places away (Lane::released)
};

template <typename T, std::size_t N>
class Queue {
 public:
  void push(const T& item) {
    if (size_ == N) {
      overflown_ = true;
      return;
    }
    items_[size_++] = item;
  }
  T pop() {
    const T first = items_[0];
    std::copy(items_.begin() + 1, items_.begin() + size_, items_.begin());
    size_--;
    return first;
  }
  void keep(std::size_t n) { size_ = std::min<std::size_t>(size_, n); }
  void keep_last() { items_[0] = items_[size_ - 1], size_ = 1; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const T& back() const { return items_[size_ - 1]; }
  [[nodiscard]] bool overflown() const { return overflown_; }
  void serialize(Digester& to) const {
    to.add(size_);
    to.add(items_.data(), size_ * sizeof(T));
  }

 private:
  std::array<T, N> items_{};
  std::size_t size_ = 0;
  bool overflown_ = false;
};

inline constexpr std::size_t kMostBytes = 8;
inline constexpr std::uint64_t kCreditAt = sizeof(LinkBlock), kRingAt = kCreditAt + sizeof(CreditBlock);
inline constexpr std::size_t kMemory = kRingAt + kMostBytes;
using Memory = std::array<std::byte, kMemory>;

/// What there is of a record on its way: numbers are small here. TCP's own end and reset are records of no type.
struct Segment {
  static constexpr std::uint8_t kEnd = 254, kReset = 255;
  std::uint8_t type = 0, epoch = 0, lane = 0, length = 0, link = 0, reason = 0, value = 0, byte = 0;
};

/// Likewise of a write: a ring's byte, or counters.
struct Flight {
  std::uint32_t immediate = 0;
  std::uint8_t to = 0, size = 0, notify = 0, value[3] = {};
  std::uint8_t reserved[2] = {};
};

/// What the peer has written here.
struct Written {
  std::uint8_t returned = 0, placed = 0, consumed = 0, ring[kMostBytes] = {};
};

template <typename Rules>
class Model {
 public:
  using L = BasicLane<Rules>;

  explicit Model(const Bounds& bounds) : bounds_(bounds), ends_{End(bounds, true), End(bounds, false)} {
    open(0);
    deliver_segment(1);
    deliver_segment(0);
    for (int e = 0; e < 2; e++)
      if (bounds.bytes[e] == 0 && !bounds.fin_apart) write(e);
  }

  template <typename F>
  void actions(F&& take) const;
  [[nodiscard]] const char* violated() const;
  [[nodiscard]] bool ended() const;
  void serialize(Digester& to) const;

 private:
  struct End {
    End(const Bounds& bounds, bool opens)
        : lane({.opens = opens, .tcp_window = bounds.tcp_window}),
          link{LinkEnd(bounds.window, bounds.reserve), LinkEnd(bounds.window, bounds.reserve)} {
      if (bounds.gathers) lane.gather(L::Gather::kLittle);
      if (bounds.gathers_ahead) lane.gather(L::Gather::kAhead);
    }
    L lane;
    LinkEnd link[2];
    Written memory[2] = {};
    Queue<Segment, 16> tcp;                        // towards this end
    Queue<Flight, 16> flights[2];                  // likewise
    Queue<std::uint8_t, 2 * kMostBytes> received;  // DATA bytes not read yet
    std::uint8_t written = 0, read = 0, forgotten = 0;
    bool fin = false, tcp_end_sent = false, tcp_end_come = false, reset_sent = false, wrong_byte = false, left = false;
    bool listed[2] = {};   // on these links it has a number
    bool cut[2] = {};      // and bytes of the send buffer have gone over it
    bool sending[2] = {};  // the device has not said that the lane's last write is done
    bool gone = false;     // there is no connection any more, only what the link needs of its lane
  };

  /// What LinkEnd asks for: one lane a link, of number `link`.
  struct Lanes {
    Model& model;
    int end;
    int link;
    std::array<std::byte, kMostBytes> buffer;
    L* find(std::uint16_t number) {
      L& lane = model.ends_[end].lane;
      return number == link && model.ends_[end].listed[link] ? &lane : nullptr;
    }
    ByteSource source(std::uint16_t) { return {buffer.data(), 0, kMostBytes}; }
    template <typename F>
    void for_each(F&& f) {
      if (L* lane = find(static_cast<std::uint16_t>(link))) f(*lane);
    }
  };

  Lanes lanes(int e, int link) { return {*this, e, link, buffer(e)}; }
  /// What the send buffer holds: what may have been forgotten is not there any more.
  [[nodiscard]] std::array<std::byte, kMostBytes> buffer(int e) const {
    std::array<std::byte, kMostBytes> bytes;
    for (std::size_t i = 0; i < kMostBytes; i++)
      bytes[i] = i < ends_[e].forgotten ? std::byte{0xee} : static_cast<std::byte>(i + 1);
    return bytes;
  }

  [[nodiscard]] LaneAddress address(int link) const {
    LaneAddress at;
    at.ring = kRingAt, at.credit = kCreditAt;
    at.lane = static_cast<std::uint16_t>(link);
    at.ring_log2 = bounds_.ring_log2;
    return at;
  }
  void open(int link) {
    ends_[0].listed[link] = true;
    ends_[0].lane.offer(static_cast<std::uint32_t>(link), address(link), kMemory);
    pump(0);
  }
  [[nodiscard]] bool may_open() const {
    const End& end = ends_[0];
    return bounds_.links == 2 && end.lane.detached() && !opened_second_ && !end.lane.aborted() && !end.gone;
  }

  void write(int e);
  void pump(int e);
  void unlist(int e, int link);
  void pull_records(int e);
  void pull_writes(int e, int link);
  void deliver_segment(int e);
  void deliver_flight(int e, int link);
  void cut(int e);
  void complete(int e, int link);
  void read(int e);
  void notice(int e, int link);
  void drain(int e, int link);
  void go(int e);
  [[nodiscard]] bool may_abort(int e) const {
    return bounds_.may_abort && (!aborted_ || bounds_.places) && !ends_[e].gone;
  }
  [[nodiscard]] Memory memory(int e, int link) const;

  Bounds bounds_;
  std::array<End, 2> ends_;
  bool opened_second_ = false;
  bool aborted_ = false;
};

// --- What an end does when it is woken

template <typename Rules>
void Model<Rules>::pump(int e) {
  End& end = ends_[e];
  for (int link = 0; link < bounds_.links; link++) unlist(e, link);
  if (end.lane.offered() && !end.lane.aborted() && !end.gone) {
    const auto link = static_cast<int>(end.lane.link());
    const bool up = end.link[link].state() == LinkState::kUp;
    end.listed[link] = up;
    up ? end.lane.accept(address(link), kMemory) : end.lane.decline(Reason::kLinkError);
  }
  if (end.lane.link_suspect()) {
    const auto link = static_cast<int>(end.lane.link());
    auto table = lanes(e, link);
    end.link[link].fail(Reason::kPeerLinkDown, table);
  }
  pull_records(e);
  for (int link = 0; link < bounds_.links; link++) pull_writes(e, link);
  pull_records(e);
  for (int link = 0; link < bounds_.links; link++) unlist(e, link);
  if (end.lane.finished() && !end.tcp_end_sent && !end.gone) {
    end.tcp_end_sent = true;
    ends_[1 - e].tcp.push({.type = Segment::kEnd});
  }
  if (end.lane.aborted() && !end.reset_sent) {
    end.reset_sent = true;
    ends_[1 - e].tcp.push({.type = Segment::kReset});
    go(e);
  }
  end.forgotten = static_cast<std::uint8_t>(std::max<std::uint64_t>(end.forgotten, end.lane.una()));
}

/// TCP is over, and nobody reads what is there.
template <typename Rules>
void Model<Rules>::go(int e) {
  End& end = ends_[e];
  if (!bounds_.places || end.gone) return;
  end.gone = true;
  if (!end.lane.aborted()) end.lane.on_tcp_over();
  for (auto rest = end.lane.readable(); rest.from != L::From::kNothing; rest = end.lane.readable())
    end.lane.consume(rest.bytes);
  for (int link = 0; link < bounds_.links; link++) unlist(e, link);
}

/// A lane that was left gives its number back, and one whose connection has gone once it may.
template <typename Rules>
void Model<Rules>::unlist(int e, int link) {
  End& end = ends_[e];
  const bool attached = !end.lane.detached() && !end.lane.offered() && end.lane.link() == static_cast<unsigned>(link);
  if (!end.listed[link] || (attached && !(end.gone && end.lane.released()))) return;
  auto table = lanes(e, link);
  end.link[link].dequeue(static_cast<std::uint16_t>(link), table);
  end.listed[link] = false;
}

template <typename Rules>
void Model<Rules>::pull_records(int e) {
  End& end = ends_[e];
  Record record;
  while (!end.tcp_end_sent && !end.gone && end.lane.next_record(record, 1)) {
    Segment segment{.type = static_cast<std::uint8_t>(record.type),
                    .epoch = record.epoch,
                    .lane = static_cast<std::uint8_t>(record.lane),
                    .length = static_cast<std::uint8_t>(record.length),
                    .link = static_cast<std::uint8_t>(record.link),
                    .reason = static_cast<std::uint8_t>(record.reason),
                    .value = static_cast<std::uint8_t>(record.value)};
    if (record.type == RecordType::kData) {
      segment.byte = std::to_integer<std::uint8_t>(buffer(e)[record.value % kMostBytes]);
      end.lane.on_tcp_acked(record.value + 1);
    }
    ends_[1 - e].tcp.push(segment);
  }
}

template <typename Rules>
Memory Model<Rules>::memory(int e, int link) const {
  Memory memory{};
  const Written& written = ends_[e].memory[link];
  memory[0] = std::byte{written.returned};
  memory[kCreditAt] = std::byte{written.placed};
  memory[kCreditAt + 8] = std::byte{written.consumed};
  std::memcpy(memory.data() + kRingAt, written.ring, sizeof written.ring);
  return memory;
}

template <typename Rules>
void Model<Rules>::pull_writes(int e, int link) {
  End& end = ends_[e];
  auto table = lanes(e, link);
  alignas(8) const Memory here = memory(e, link);
  end.link[link].enqueue(static_cast<std::uint16_t>(link), table);
  Write write;
  while (end.link[link].next_write(here, table, write)) {
    Flight flight{.immediate = write.immediate,
                  .to = static_cast<std::uint8_t>(write.to),
                  .size = static_cast<std::uint8_t>(write.size()),
                  .notify = static_cast<std::uint8_t>(write.notify ? 1 : 0)};
    for (std::size_t i = 0; i < write.from[0].size(); i++)
      flight.value[i] = std::to_integer<std::uint8_t>(write.from[0][i]);
    if (write.small_length != 0) flight.value[0] = std::to_integer<std::uint8_t>(write.small[0]);
    if (write.small_length == 16) flight.value[1] = std::to_integer<std::uint8_t>(write.small[8]);
    ends_[1 - e].flights[link].push(flight);
    if (write.last_of != kNoLane) {
      end.sending[link] = true;
      if (!bounds_.late_devices) complete(e, link);
    }
    write = {};
  }
}

// --- What happens to it

template <typename Rules>
void Model<Rules>::write(int e) {
  End& end = ends_[e];
  if (end.written < bounds_.bytes[e]) {
    end.written++;
    end.lane.write(1);
  } else {
    end.fin = true;
  }
  if (end.written == bounds_.bytes[e] && !bounds_.fin_apart) end.fin = true;
  if (end.fin) end.lane.shutdown_send();
  pump(e);
}

template <typename Rules>
void Model<Rules>::deliver_segment(int e) {
  End& end = ends_[e];
  const Segment segment = end.tcp.pop();
  if (end.gone) return;
  if (segment.type == Segment::kReset) {
    end.lane.abort();
    end.reset_sent = true;
    go(e);
  } else if (segment.type == Segment::kEnd) {
    end.tcp_end_come = true;
    end.lane.on_tcp_end();
  } else {
    Record record{.type = static_cast<RecordType>(segment.type),
                  .epoch = segment.epoch,
                  .lane = segment.lane,
                  .length = segment.length,
                  .link = segment.link,
                  .reason = segment.reason,
                  .value = segment.value,
                  .address = address(segment.link)};
    if (record.type == RecordType::kData) end.received.push(segment.byte);
    end.lane.on_record(record);
  }
  pump(e);
}

template <typename Rules>
void Model<Rules>::deliver_flight(int e, int link) {
  End& end = ends_[e];
  const Flight flight = end.flights[link].pop();
  Written& memory = end.memory[link];
  if (flight.size != 0 && flight.to == 0) memory.returned = flight.value[0];
  if (flight.size != 0 && flight.to == kCreditAt) memory.placed = flight.value[0], memory.consumed = flight.value[1];
  if (flight.to >= kRingAt) std::copy_n(flight.value, flight.size, memory.ring + (flight.to - kRingAt));
  if (flight.notify == 0) return;
  auto table = lanes(e, link);
  // A message that comes when counts are final is the lane's to refuse.
  if (end.link[link].state() == LinkState::kDrained) {
    const Message message = to_message(flight.immediate);
    if (auto* lane = table.find(message.lane); lane != nullptr && !is_of_link(message.op))
      lane->on_message(message, flight.size);
  } else {
    end.link[link].on_arrival({flight.immediate, flight.size}, table);
  }
  pump(e);
}

template <typename Rules>
void Model<Rules>::cut(int e) {
  End& end = ends_[e];
  end.cut[end.lane.link()] = true;
  end.lane.cut();
  pump(e);
}

template <typename Rules>
void Model<Rules>::complete(int e, int link) {
  auto table = lanes(e, link);
  ends_[e].sending[link] = false;
  ends_[e].link[link].on_arrival({.done_of = static_cast<std::uint16_t>(link)}, table);
}

template <typename Rules>
void Model<Rules>::read(int e) {
  End& end = ends_[e];
  const auto next = end.lane.readable();
  std::uint8_t byte = 0;
  if (next.from == L::From::kTcp) {
    byte = end.received.empty() ? 0 : end.received.pop();
  } else {
    byte = end.memory[end.lane.link()].ring[next.position];
  }
  end.read++;
  end.wrong_byte = end.wrong_byte || byte != end.read;
  end.lane.consume(1);
  pump(e);
}

template <typename Rules>
void Model<Rules>::notice(int e, int link) {
  auto table = lanes(e, link);
  ends_[e].link[link].fail(Reason::kLinkError, table);
  pump(e);
}

template <typename Rules>
void Model<Rules>::drain(int e, int link) {
  auto table = lanes(e, link);
  if (!bounds_.late_messages) ends_[e].flights[link].keep(0);
  ends_[e].sending[link] = false;
  ends_[e].link[link].on_drained(table);
  pump(e);
}

template <typename Rules>
template <typename F>
void Model<Rules>::actions(F&& take) const {
  static constexpr const char* kNames[2][13] = {
      {"a:write", "a:done", "a:cut", "a:read", "a:tcp", "a:flight0", "a:flight1", "a:notices", "a:final", "a:leave",
       "a:abort", "a:reset", "a:gone"},
      {"b:write", "b:done", "b:cut", "b:read", "b:tcp", "b:flight0", "b:flight1", "b:notices", "b:final", "b:leave",
       "b:abort", "b:reset", "b:gone"}};
  for (int e = 0; e < 2; e++) {
    const End& end = ends_[e];
    const auto& name = kNames[e];
    if (!end.tcp.empty()) take(name[4], [e](Model& m) { m.deliver_segment(e); });
    const bool tcp_over = end.tcp_end_sent && end.tcp_end_come && end.lane.at_eof();
    if (tcp_over && !bounds_.places) continue;
    const bool alive = !end.lane.aborted() && !end.gone;
    // What was lost in front of a reset does not come any more.
    if (bounds_.places && end.tcp.size() > 1 && end.tcp.back().type == Segment::kReset)
      take(name[11], [e](Model& m) { m.ends_[e].tcp.keep_last(), m.deliver_segment(e); });
    if (bounds_.places && tcp_over && !end.gone) take(name[12], [e](Model& m) { m.go(e), m.pump(e); });
    if (alive && !end.fin) take(name[0], [e](Model& m) { m.write(e); });
    if (alive && end.lane.can_cut()) take(name[2], [e](Model& m) { m.cut(e); });
    if (alive && end.lane.readable().bytes != 0) take(name[3], [e](Model& m) { m.read(e); });
    for (int link = 0; link < bounds_.links; link++) {
      if (!end.flights[link].empty()) take(name[5 + link], [e, link](Model& m) { m.deliver_flight(e, link); });
      if (end.sending[link]) take(name[1], [e, link](Model& m) { m.complete(e, link), m.pump(e); });
      const bool opened = link == 0 || opened_second_;
      if (bounds_.may_die && opened && end.link[link].state() == LinkState::kUp)
        take(name[7], [e, link](Model& m) { m.notice(e, link); });
      if (end.link[link].state() == LinkState::kFailed) take(name[8], [e, link](Model& m) { m.drain(e, link); });
    }
    if (alive && bounds_.may_leave && !end.left && e == 0 && end.lane.tx_path() == TxPath::kLane)
      take(name[9], [e](Model& m) { m.ends_[e].left = true, m.ends_[e].lane.leave(), m.pump(e); });
    if (may_abort(e) && alive) take(name[10], [e](Model& m) { m.aborted_ = true, m.ends_[e].lane.abort(), m.pump(e); });
  }
  if (may_open()) take("open", [](Model& m) { m.opened_second_ = true, m.open(1); });
}

template <typename Rules>
const char* Model<Rules>::violated() const {
  for (int e = 0; e < 2; e++) {
    const End& end = ends_[e];
    if (end.wrong_byte) return "what is read is what was written, in order";
    if (end.lane.broken()) return to_string(end.lane.reason());
    if (end.read > ends_[1 - e].written) return "no more is read than was written";
    const bool sends = (end.sending[0] && end.cut[0]) || (end.sending[1] && end.cut[1]);
    if (sends && end.lane.source_idle()) return "what a device may send again is not given away";
    if (end.lane.at_eof() && !end.gone && end.read != bounds_.bytes[1 - e]) return "the end comes behind the last byte";
    if (end.forgotten > end.written) return "no byte is acknowledged that was not written";
    if (end.tcp.overflown() || end.flights[0].overflown() || end.flights[1].overflown())
      return "the model's queues hold";
    for (const LinkEnd& link : end.link)
      if (link.reason() != Reason::kNone && link.reason() != Reason::kLinkError &&
          link.reason() != Reason::kPeerLinkDown)
        return to_string(link.reason());
  }
  return nullptr;
}

template <typename Rules>
bool Model<Rules>::ended() const {
  if (bounds_.places) {
    for (const End& end : ends_)
      if (!end.gone || end.listed[0] || end.listed[1]) return false;
    return true;
  }
  if (aborted_) return ends_[0].lane.aborted() && ends_[1].lane.aborted();
  for (int e = 0; e < 2; e++) {
    const End& end = ends_[e];
    if (!end.lane.at_eof() || !end.tcp_end_come || !end.tcp_end_sent || end.lane.una() != end.written) return false;
  }
  return true;
}

template <typename Rules>
void Model<Rules>::serialize(Digester& to) const {
  for (const End& end : ends_) {
    to.add(end.lane);
    for (int link = 0; link < bounds_.links; link++) {
      to.add(end.link[link]);
      to.add(end.memory[link]);
      end.flights[link].serialize(to);
    }
    end.tcp.serialize(to);
    end.received.serialize(to);
    const std::uint8_t rest[] = {
        end.written, end.read, end.forgotten,
        static_cast<std::uint8_t>(end.fin | end.tcp_end_sent << 1 | end.tcp_end_come << 2 | end.reset_sent << 3 |
                                  end.wrong_byte << 4 | end.left << 5 | end.listed[0] << 6 | end.listed[1] << 7),
        static_cast<std::uint8_t>(end.cut[0] | end.cut[1] << 1 | end.sending[0] << 2 | end.sending[1] << 3 |
                                  end.gone << 4)};
    to.add(rest, sizeof rest);
  }
  const std::uint8_t rest[] = {static_cast<std::uint8_t>(opened_second_ | aborted_ << 1)};
  to.add(rest, sizeof rest);
}

}  // namespace bypass::fastpath::test
