#include "stack/frame/checksum.h"

#include <algorithm>
#include <cstring>

namespace bypass {
namespace {

// One word of a piece. Every word begins at an even offset; the last byte is half a word.
template <typename Word, bool kCopy>
void add_word(PartialSum& sum, std::byte* to, const std::byte* from, std::size_t& at) {
  Word v;
  std::memcpy(&v, from + at, sizeof v);
  if constexpr (kCopy) std::memcpy(to + at, &v, sizeof v);
  sum += {v};
  at += sizeof v;
}

// Two 64-bit lanes: SSE2, NEON, or whatever the compiler uses for them.
using Lanes = std::uint64_t __attribute__((vector_size(16)));

// Sums, and with kCopy copies, the whole 32-byte steps of `len`; returns their sum. 32-bit halves are added into
// 64-bit lanes, which cannot overflow below 2^32 steps: no carry chain, so the loop runs at the speed of its loads.
template <bool kCopy>
PartialSum sum_steps(std::byte* to, const std::byte* from, std::size_t steps) {
  const Lanes low_half = {0xffffffffU, 0xffffffffU};
  Lanes low[2] = {}, high[2] = {};
  for (std::size_t i = 0; i < steps; i++) {
    Lanes v[2];
    std::memcpy(v, from + i * 32, 32);
    if constexpr (kCopy) std::memcpy(to + i * 32, v, 32);
    low[0] += v[0] & low_half;
    high[0] += v[0] >> 32;
    low[1] += v[1] & low_half;
    high[1] += v[1] >> 32;
  }
  const Lanes sum = low[0] + low[1] + high[0] + high[1];
  return PartialSum{sum[0]} + PartialSum{sum[1]};
}

template <bool kCopy>
PartialSum sum_bytes(std::byte* to, const std::byte* from, std::size_t len) {
  const std::size_t stepped = len & ~std::size_t{31};
  PartialSum sum = stepped != 0 ? sum_steps<kCopy>(to, from, stepped / 32) : PartialSum{};
  std::size_t at = stepped;
  while (at + 8 <= len) add_word<std::uint64_t, kCopy>(sum, to, from, at);
  if ((len & 4) != 0) add_word<std::uint32_t, kCopy>(sum, to, from, at);
  if ((len & 2) != 0) add_word<std::uint16_t, kCopy>(sum, to, from, at);
  if ((len & 1) != 0) add_word<std::uint8_t, kCopy>(sum, to, from, at);
  return sum;
}

// Adds pieces one after the other, and swaps the sums of those that begin at an odd offset.
class ChainSum {
 public:
  explicit ChainSum(std::size_t skip, std::size_t len) : skip_(skip), left_(len) {}

  void add(const std::byte* bytes, std::size_t len) {
    const std::size_t skipped = std::min(skip_, len);
    skip_ -= skipped;
    const std::size_t take = std::min(len - skipped, left_);
    if (take == 0) return;
    const PartialSum piece = checksum(bytes + skipped, take);
    sum_ += odd_ ? checksum_odd(piece) : piece;
    odd_ ^= (take & 1) != 0;
    left_ -= take;
  }
  [[nodiscard]] PartialSum sum() const { return sum_; }

 private:
  std::size_t skip_, left_;
  PartialSum sum_;
  bool odd_ = false;
};

}  // namespace

PartialSum checksum(const void* bytes, std::size_t len) {
  return sum_bytes<false>(nullptr, static_cast<const std::byte*>(bytes), len);
}

PartialSum copy_checksum(void* to, const void* from, std::size_t len) {
  return sum_bytes<true>(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), len);
}

PartialSum checksum_frame(const Packet& head, std::size_t offset, std::size_t len) {
  ChainSum chain{offset, len};
  for (const Packet* p = &head; p != nullptr; p = p->next_segment) chain.add(p->data, p->len);
  for (int i = 0; i < 2; i++) chain.add(head.external[i], head.external_len[i]);
  return chain.sum();
}

}  // namespace bypass
