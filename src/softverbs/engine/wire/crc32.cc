#include "softverbs/engine/wire/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bypass::rdma {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;

// tables[k][b]: the CRC of byte b followed by k zero bytes.
constexpr auto make_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; b++) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; k++)
    for (std::size_t b = 0; b < 256; b++) tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xff];
  return tables;
}
constexpr auto kTables = make_tables();

std::uint32_t update_by_table(std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  for (; len >= 8; len -= 8, p += 8) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
          kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^
          kTables[0][high >> 24];
  }
  if (len >= 4) {
    std::uint32_t low;
    std::memcpy(&low, p, 4);
    low ^= crc;
    crc = kTables[3][low & 0xff] ^ kTables[2][low >> 8 & 0xff] ^ kTables[1][low >> 16 & 0xff] ^ kTables[0][low >> 24];
    p += 4, len -= 4;
  }
  for (; len != 0; len--, p++) crc = crc >> 8 ^ kTables[0][(crc ^ *p) & 0xff];
  return crc;
}

#if defined(__x86_64__)

// Folding by carry-less multiplication (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ",
// 2009). The 16 bytes of state are multiplied by the remainder of x^distance, and combined with the 16 bytes that lie
// that far ahead. With 512 bits, four such states lie side by side.

// x^n modulo the polynomial, reflected, in the 33 bits that a product of reflected factors needs.
constexpr std::int64_t power_of_x(unsigned n) {
  std::uint32_t r = 0x80000000;  // x^0
  for (; n != 0; n--) r = r >> 1 ^ ((r & 1) != 0 ? kPolynomial : 0);
  return std::int64_t{r} << 1;
}
struct Distance {
  std::int64_t low, high;  // factors of the state's halves
};
constexpr Distance ahead_by(unsigned bytes) {
  return {power_of_x(8 * bytes + 32), power_of_x(8 * bytes - 32)};
}
constexpr Distance kOneBlock = ahead_by(16), kTwoBlocks = ahead_by(32), kFourBlocks = ahead_by(64),
                   kSixteenBlocks = ahead_by(256);
constexpr std::size_t kBlock = sizeof(__m128i), kPair = sizeof(__m256i), kWide = sizeof(__m512i);

// For the last step, Barrett's: the polynomial, and the quotient of x^64 by it, reflected, 33 bits.
constexpr std::int64_t reflected(std::uint64_t v) {
  std::uint64_t r = 0;
  for (int i = 0; i <= 32; i++) r |= (v >> i & 1) << (32 - i);
  return static_cast<std::int64_t>(r);
}
constexpr std::uint64_t kWhole = 0x104c11db7;  // the polynomial itself, x^32 first
constexpr std::uint64_t quotient() {
  std::uint64_t quotient = 1, rest = kWhole ^ std::uint64_t{1} << 32;
  for (int bit = 0; bit < 32; bit++) {
    rest <<= 1;
    const bool goes = (rest >> 32) != 0;
    quotient = quotient << 1 | (goes ? 1 : 0);
    if (goes) rest ^= kWhole;
  }
  return quotient;
}
constexpr std::int64_t kDivisor = reflected(kWhole), kQuotient = reflected(quotient()), kHalfBlock = power_of_x(64);

#define BYPASS_PCLMUL __attribute__((target("pclmul,sse4.1")))

BYPASS_PCLMUL inline __m128i load_block(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
BYPASS_PCLMUL inline __m128i spread(Distance distance) {
  return _mm_set_epi64x(distance.high, distance.low);
}
BYPASS_PCLMUL inline __m128i fold(__m128i state, __m128i factors, __m128i ahead) {
  const __m128i low = _mm_clmulepi64_si128(state, factors, 0x00), high = _mm_clmulepi64_si128(state, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), ahead);
}

// Combines the last `n` bytes before `end`, 1 to 15 of them; at least a block lies before them in the stream. Uses the
// state's first bytes, moved ahead, and a block made of its other bytes and the new ones.
BYPASS_PCLMUL inline __m128i fold_rest(__m128i state, const std::uint8_t* end, std::size_t n) {
  constexpr std::uint8_t kNo = 0x80;
  alignas(kBlock) static constexpr std::uint8_t kPlaces[3 * kBlock] = {
      kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo,  //
      0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,   //
      kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo};
  const __m128i down = load_block(kPlaces + kBlock + n);
  const __m128i block = _mm_blendv_epi8(_mm_shuffle_epi8(state, down), load_block(end - kBlock), down);
  return fold(_mm_shuffle_epi8(state, load_block(kPlaces + n)), spread(kOneBlock), block);
}

// 128 bits to 32.
BYPASS_PCLMUL inline std::uint32_t reduce(__m128i state) {
  const __m128i factors = _mm_set_epi64x(kHalfBlock, kOneBlock.high);
  const __m128i barrett = _mm_set_epi64x(kQuotient, kDivisor);
  const __m128i low_word = _mm_set_epi32(0, 0, 0, -1);
  state = _mm_xor_si128(_mm_clmulepi64_si128(state, factors, 0x00), _mm_srli_si128(state, 8));
  state = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(state, low_word), factors, 0x10), _mm_srli_si128(state, 4));
  const __m128i times = _mm_clmulepi64_si128(_mm_and_si128(state, low_word), barrett, 0x10);
  state = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(times, low_word), barrett, 0x00), state);
  return static_cast<std::uint32_t>(_mm_extract_epi32(state, 1));
}

/// Bytes that must still be combined.
struct Stream {
  const std::uint8_t* at;
  std::size_t left;

  BYPASS_PCLMUL __m128i take() {
    const __m128i block = load_block(at);
    at += kBlock, left -= kBlock;
    return block;
  }
};

// Combines what is left after whole states: blocks, then bytes.
BYPASS_PCLMUL std::uint32_t finish(__m128i state, Stream bytes) {
  const __m128i near = spread(kOneBlock);
  while (bytes.left >= kBlock) state = fold(state, near, bytes.take());
  if (bytes.left != 0) state = fold_rest(state, bytes.at + bytes.left, bytes.left);
  return reduce(state);
}

// A few blocks are each moved ahead to the last one separately: no product waits for another.
constexpr std::size_t kFew = 8;
constexpr std::array<Distance, kFew> kBlocksAhead = {Distance{},   ahead_by(16), ahead_by(32), ahead_by(48),
                                                     ahead_by(64), ahead_by(80), ahead_by(96), ahead_by(112)};
BYPASS_PCLMUL std::uint32_t run_short(std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  Stream bytes{p, len};
  __m128i block = _mm_xor_si128(bytes.take(), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i state = _mm_setzero_si128();
  for (std::size_t behind = bytes.left / kBlock; behind != 0; behind--) {
    state = fold(block, spread(kBlocksAhead[behind]), state);
    block = bytes.take();
  }
  return finish(_mm_xor_si128(state, block), bytes);
}

// At least one block. Four states side by side hide the multiplier's latency.
BYPASS_PCLMUL std::uint32_t run_folding(std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  Stream bytes{p, len};
  __m128i a = _mm_xor_si128(bytes.take(), _mm_cvtsi32_si128(static_cast<int>(crc)));
  if (bytes.left >= 7 * kBlock) {
    const __m128i far = spread(kFourBlocks), near = spread(kOneBlock);
    __m128i b = bytes.take(), c = bytes.take(), d = bytes.take();
    while (bytes.left >= 4 * kBlock) {
      a = fold(a, far, bytes.take());
      b = fold(b, far, bytes.take());
      c = fold(c, far, bytes.take());
      d = fold(d, far, bytes.take());
    }
    a = fold(fold(fold(a, near, b), near, c), near, d);
  }
  return finish(a, bytes);
}
#undef BYPASS_PCLMUL

#define BYPASS_VPCLMUL256 __attribute__((target("avx2,vpclmulqdq,pclmul")))

BYPASS_VPCLMUL256 inline __m256i spread_pair(Distance distance) {
  return _mm256_set_epi64x(distance.high, distance.low, distance.high, distance.low);
}
BYPASS_VPCLMUL256 inline __m256i fold_pair(__m256i state, __m256i factors, __m256i ahead) {
  const __m256i low = _mm256_clmulepi64_epi128(state, factors, 0x00),
                high = _mm256_clmulepi64_epi128(state, factors, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(low, high), ahead);
}
BYPASS_VPCLMUL256 inline __m256i take_pair(Stream& bytes) {
  const __m256i blocks = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes.at));
  bytes.at += kPair, bytes.left -= kPair;
  return blocks;
}

// At least two times 32 bytes. More than two states are slower where the multiplier takes 256 bits at a time (4 KiB on
// Zen 3: 160 ns with two, 195 with four or eight, 360 with sixteen bytes).
BYPASS_VPCLMUL256 std::uint32_t run_pair_folding(std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  Stream bytes{p, len};
  __m256i a = _mm256_xor_si256(take_pair(bytes), _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(crc))));
  __m256i b = take_pair(bytes);
  const __m256i far = spread_pair(kFourBlocks);
  while (bytes.left >= 2 * kPair) {
    a = fold_pair(a, far, take_pair(bytes));
    b = fold_pair(b, far, take_pair(bytes));
  }
  a = fold_pair(a, spread_pair(kTwoBlocks), b);
  const __m128i whole = fold(_mm256_castsi256_si128(a), spread(kOneBlock), _mm256_extracti128_si256(a, 1));
  _mm256_zeroupper();  // finish() uses SSE, which would otherwise carry the upper halves along
  return finish(whole, bytes);
}
#undef BYPASS_VPCLMUL256

#define BYPASS_VPCLMUL __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul")))

BYPASS_VPCLMUL inline __m512i spread_wide(Distance distance) {
  return _mm512_set_epi64(distance.high, distance.low, distance.high, distance.low, distance.high, distance.low,
                          distance.high, distance.low);
}
BYPASS_VPCLMUL inline __m512i fold_wide(__m512i state, __m512i factors, __m512i ahead) {
  constexpr int kXor3 = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(state, factors, 0x00),
                                   _mm512_clmulepi64_epi128(state, factors, 0x11), ahead, kXor3);
}
BYPASS_VPCLMUL inline __m512i take_wide(Stream& bytes) {
  const __m512i blocks = _mm512_loadu_si512(bytes.at);
  bytes.at += kWide, bytes.left -= kWide;
  return blocks;
}

// At least four times 64 bytes.
BYPASS_VPCLMUL std::uint32_t run_wide_folding(std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  Stream bytes{p, len};
  __m512i a = _mm512_xor_si512(take_wide(bytes), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  __m512i b = take_wide(bytes), c = take_wide(bytes), d = take_wide(bytes);
  const __m512i far = spread_wide(kSixteenBlocks), near = spread_wide(kFourBlocks);
  while (bytes.left >= 4 * kWide) {
    a = fold_wide(a, far, take_wide(bytes));
    b = fold_wide(b, far, take_wide(bytes));
    c = fold_wide(c, far, take_wide(bytes));
    d = fold_wide(d, far, take_wide(bytes));
  }
  a = fold_wide(fold_wide(fold_wide(a, near, b), near, c), near, d);
  while (bytes.left >= kWide) a = fold_wide(a, near, take_wide(bytes));
  alignas(kWide) __m128i parts[kWide / kBlock];
  _mm512_store_si512(parts, a);
  _mm256_zeroupper();
  const __m128i block = spread(kOneBlock);
  return finish(fold(fold(fold(parts[0], block, parts[1]), block, parts[2]), block, parts[3]), bytes);
}
#undef BYPASS_VPCLMUL

bool can_fold() {
  return __builtin_cpu_supports("pclmul") != 0;
}
bool can_fold_pairs() {
  return __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("avx2") != 0;
}
bool can_fold_wide() {
  return __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

// Below these lengths, beginning and ending with a unit costs more than the unit saves.
constexpr std::size_t kFoldingPays = kBlock, kPairsPay = (kFew + 1) * kBlock, kWidePays = 4 * kWide;

std::uint32_t run(CrcUnit unit, std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  if (unit == CrcUnit::kWideFolding && len >= kWidePays) return run_wide_folding(crc, p, len);
  if (unit >= CrcUnit::kPairFolding && len >= kPairsPay) return run_pair_folding(crc, p, len);
  if (unit != CrcUnit::kTable && len >= kFoldingPays)
    return len / kBlock <= kFew ? run_short(crc, p, len) : run_folding(crc, p, len);
  return update_by_table(crc, p, len);
}

#else

bool can_fold() {
  return false;
}
bool can_fold_pairs() {
  return false;
}
bool can_fold_wide() {
  return false;
}
std::uint32_t run(CrcUnit, std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  return update_by_table(crc, p, len);
}

#endif

CrcUnit best_unit() {
  if (can_fold_wide()) return CrcUnit::kWideFolding;
  if (can_fold_pairs()) return CrcUnit::kPairFolding;
  return can_fold() ? CrcUnit::kFolding : CrcUnit::kTable;
}

}  // namespace

bool has_crc_unit(CrcUnit unit) {
  return unit <= best_unit();
}

std::uint32_t crc32_update(CrcUnit unit, std::uint32_t crc, const void* bytes, std::size_t len) {
  return run(unit, crc, static_cast<const std::uint8_t*>(bytes), len);
}

std::uint32_t crc32_update(std::uint32_t crc, const void* bytes, std::size_t len) {
  return crc32_update(best_unit(), crc, bytes, len);
}

}  // namespace bypass::rdma
