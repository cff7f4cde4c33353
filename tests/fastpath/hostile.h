// Hostile: a peer of end 0 of Hosts, which writes anything, at any time, to everything that it can write.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "fastpath/hosts.h"

namespace bypass::fastpath::test {

class Hostile {
 public:
  /// How bytes and messages get to the victim.
  struct Means {
    std::function<void(std::uint64_t to, std::span<const std::byte> bytes)> place;
    std::function<void(const Arrival& message)> tell;
  };

  Hostile(Hosts& hosts, Means means) : hosts_(hosts), random_(hosts.random()), means_(std::move(means)) {}

  /// Writes random bytes, or a counter that could almost be right, somewhere in [from, from + size) of the victim's
  /// memory.
  void scribble(std::uint64_t from, std::uint64_t size) {
    if (random_.chance(0.5)) {
      for (std::uint64_t n = random_.below(32); n != 0; n--) {
        const auto byte = static_cast<std::byte>(random_.next());
        means_.place(from + random_.below(size), {&byte, 1});
      }
    } else if (size >= 8) {
      const std::uint64_t value = random_.chance(0.8) ? random_.below(20'000) : random_.next();
      means_.place(from + (random_.below(size - 7) & ~std::uint64_t{7}), std::as_bytes(std::span(&value, 1)));
    }
  }
  /// Sends a message of any kind, to `lane` or to any lane.
  void message(std::uint16_t lane) {
    const Message message{
        .op = static_cast<Op>(random_.below(16)),
        .sequence = static_cast<std::uint16_t>(random_.chance(0.7) ? random_.below(8) : random_.next()),
        .lane = lane};
    const std::uint64_t length = random_.chance(0.7) ? random_.below(3) * 100 : random_.next();
    means_.tell({to_immediate(message), static_cast<std::uint32_t>(length)});
    messages_++;
  }
  /// Sends a record of any kind, mostly one that could be right, or any bytes.
  void record(std::size_t connection) {
    auto& tcp = hosts_.stream(0, connection).tcp;
    std::array<std::byte, kMaxControl> room{};
    Record record{.type = static_cast<RecordType>(1 + random_.below(19)),
                  .epoch = static_cast<std::uint8_t>(random_.below(4)),
                  .lane = static_cast<std::uint16_t>(random_.below(5)),
                  .link = static_cast<std::uint32_t>(random_.below(4)),
                  .value = random_.chance(0.8) ? random_.below(20'000) : random_.next()};
    record.address = {.ring = random_.next() >> random_.below(64),
                      .credit = random_.next() >> random_.below(64),
                      .lane = static_cast<std::uint16_t>(random_.next()),
                      .ring_log2 = static_cast<std::uint8_t>(12 + random_.below(15))};
    if (record.type == RecordType::kData) record.length = 1 + static_cast<std::uint32_t>(random_.below(100));
    std::size_t n = encode(record, room);
    if (record.type == RecordType::kData) n += record.length;
    if (random_.chance(0.1)) room[random_.below(n)] = static_cast<std::byte>(random_.next());
    tcp.insert(tcp.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(n));
  }
  [[nodiscard]] std::uint64_t messages() const { return messages_; }

 private:
  Hosts& hosts_;
  bypass::sim::Random& random_;
  Means means_;
  std::uint64_t messages_ = 0;
};

/// What a victim's lane reports must be usable without further checks.
inline void expect_sane(Hosts& hosts, std::size_t i) {
  Stream& s = hosts.stream(0, i);
  const auto next = s.lane.readable();
  ASSERT_LE(s.lane.una(), s.lane.end());
  ASSERT_LE(s.lane.next_offset(), s.lane.end());
  if (next.from == Lane::From::kRing) {
    ASSERT_LE(next.position + next.bytes, std::uint64_t{1} << s.lane.local().ring_log2);
  } else {
    ASSERT_LE(next.bytes, s.received.size());
  }
}

}  // namespace bypass::fastpath::test
