// SeqNum: a TCP sequence number (RFC 9293 §3.4). Arithmetic is modulo 2^32 and order is defined only
// between numbers less than 2^31 apart; hence named comparisons and no operator<.
#pragma once

#include <cstdint>

namespace bypass::tcp {

struct SeqNum {
  std::uint32_t v = 0;

  friend constexpr bool operator==(SeqNum, SeqNum) = default;
  friend constexpr SeqNum operator+(SeqNum a, std::uint32_t n) { return {a.v + n}; }
  friend constexpr SeqNum operator-(SeqNum a, std::uint32_t n) { return {a.v - n}; }
  constexpr SeqNum& operator+=(std::uint32_t n) {
    v += n;
    return *this;
  }
};

/// How far `b` lies before `a`; negative if it lies after `a`.
constexpr std::int32_t operator-(SeqNum a, SeqNum b) {
  return static_cast<std::int32_t>(a.v - b.v);
}
constexpr bool before(SeqNum a, SeqNum b) {
  return a - b < 0;
}
constexpr bool after(SeqNum a, SeqNum b) {
  return a - b > 0;
}
constexpr bool before_or_at(SeqNum a, SeqNum b) {
  return a - b <= 0;
}
constexpr bool after_or_at(SeqNum a, SeqNum b) {
  return a - b >= 0;
}
/// Bytes from `first` up to `last`, which is not before it.
constexpr std::uint32_t distance(SeqNum first, SeqNum last) {
  return last.v - first.v;
}
constexpr SeqNum earlier(SeqNum a, SeqNum b) {
  return before(a, b) ? a : b;
}
constexpr SeqNum later(SeqNum a, SeqNum b) {
  return before(a, b) ? b : a;
}
/// Whether `s` is one of the `size` numbers from `first` on; windows may be wider than 2^31 here.
constexpr bool in_window(SeqNum s, SeqNum first, std::uint32_t size) {
  return distance(first, s) < size;
}

/// The 64-bit stream offset of `s`, given that `base` is number `base_offset` and less than 2^31 away.
constexpr std::uint64_t stream_offset(SeqNum s, SeqNum base, std::uint64_t base_offset) {
  return base_offset + static_cast<std::uint64_t>(std::int64_t{s - base});
}
/// The sequence number of a stream offset; exact at any distance.
constexpr SeqNum sequence_at(std::uint64_t offset, SeqNum base, std::uint64_t base_offset) {
  return base + static_cast<std::uint32_t>(offset - base_offset);
}

/// Bytes [begin, end) that a receiver holds (RFC 2018 §3).
struct SackBlock {
  SeqNum begin, end;
  friend constexpr bool operator==(const SackBlock&, const SackBlock&) = default;
  [[nodiscard]] constexpr std::uint32_t size() const { return distance(begin, end); }
  [[nodiscard]] constexpr bool empty() const { return begin == end; }
};

}  // namespace bypass::tcp
