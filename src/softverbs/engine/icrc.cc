#include "softverbs/engine/icrc.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "stack/wire.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bypass::rdma {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;
constexpr std::size_t kBthBytes = 12;

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

}  // namespace

std::uint32_t crc32_update_table(std::uint32_t crc, const void* bytes, std::size_t len) {
  const auto* p = static_cast<const std::uint8_t*>(bytes);
  for (; len >= 8; len -= 8, p += 8) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
          kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^
          kTables[0][high >> 24];
  }
  for (; len != 0; len--, p++) crc = crc >> 8 ^ kTables[0][(crc ^ *p) & 0xff];
  return crc;
}

#if defined(__x86_64__)
namespace {

// Folding by carry-less multiplication (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ",
// 2009): 16 bytes of state, times what x^distance leaves, take in the 16 bytes that lie that far ahead.

// x^n modulo the polynomial, reflected, in the 33 bits that a product of reflected factors needs.
constexpr std::int64_t power_of_x(unsigned n) {
  std::uint32_t r = 0x80000000;  // x^0
  for (; n != 0; n--) r = r >> 1 ^ ((r & 1) != 0 ? kPolynomial : 0);
  return std::int64_t{r} << 1;
}
constexpr std::int64_t kFar[2] = {power_of_x(512 + 32), power_of_x(512 - 32)};   // 64 bytes ahead
constexpr std::int64_t kNear[2] = {power_of_x(128 + 32), power_of_x(128 - 32)};  // 16 bytes ahead
constexpr std::size_t kBlock = sizeof(__m128i);

#define BYPASS_PCLMUL __attribute__((target("pclmul,sse2")))

BYPASS_PCLMUL inline __m128i load(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
BYPASS_PCLMUL inline __m128i fold(__m128i state, __m128i factors, __m128i ahead) {
  const __m128i low = _mm_clmulepi64_si128(state, factors, 0x00), high = _mm_clmulepi64_si128(state, factors, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), ahead);
}

// At least one block. Four states side by side hide the multiplier's latency.
BYPASS_PCLMUL std::uint32_t crc32_update_folding(std::uint32_t crc, const std::uint8_t* p, std::size_t len) {
  const __m128i far = _mm_set_epi64x(kFar[1], kFar[0]), near = _mm_set_epi64x(kNear[1], kNear[0]);
  __m128i state = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(crc)));
  p += kBlock, len -= kBlock;
  if (len >= 7 * kBlock) {
    __m128i b = load(p), c = load(p + kBlock), d = load(p + 2 * kBlock);
    for (p += 3 * kBlock, len -= 3 * kBlock; len >= 4 * kBlock; p += 4 * kBlock, len -= 4 * kBlock) {
      state = fold(state, far, load(p));
      b = fold(b, far, load(p + kBlock));
      c = fold(c, far, load(p + 2 * kBlock));
      d = fold(d, far, load(p + 3 * kBlock));
    }
    state = fold(fold(fold(state, near, b), near, c), near, d);
  }
  for (; len >= kBlock; p += kBlock, len -= kBlock) state = fold(state, near, load(p));
  alignas(kBlock) std::uint8_t rest[kBlock];
  _mm_store_si128(reinterpret_cast<__m128i*>(rest), state);
  return crc32_update_table(crc32_update_table(0, rest, kBlock), p, len);
}
#undef BYPASS_PCLMUL

}  // namespace

std::uint32_t crc32_update(std::uint32_t crc, const void* bytes, std::size_t len) {
  if (len >= 2 * kBlock && __builtin_cpu_supports("pclmul"))
    return crc32_update_folding(crc, static_cast<const std::uint8_t*>(bytes), len);
  return crc32_update_table(crc, bytes, len);
}
#else
std::uint32_t crc32_update(std::uint32_t crc, const void* bytes, std::size_t len) {
  return crc32_update_table(crc, bytes, len);
}
#endif

std::uint32_t icrc_headers(const std::byte* frame, const IcrcLayout& layout) {
  std::array<std::byte, 8 + 60 + sizeof(wire::Udp) + kBthBytes> masked;
  const std::size_t ip_len = layout.udp - layout.ip;
  constexpr std::byte kOnes{0xff};
  std::fill_n(masked.begin(), 8, kOnes);
  std::byte* ip = masked.data() + 8;
  std::memcpy(ip, frame + layout.ip, ip_len + sizeof(wire::Udp) + kBthBytes);
  if ((ip[0] >> 4) == std::byte{4}) {
    ip[1] = ip[8] = ip[10] = ip[11] = kOnes;  // TOS, TTL, header checksum
  } else {
    ip[0] |= std::byte{0x0f};  // traffic class, flow label, hop limit
    ip[1] = ip[2] = ip[3] = ip[7] = kOnes;
  }
  std::byte* udp = ip + ip_len;
  udp[6] = udp[7] = kOnes;  // the checksum
  udp[8 + 4] = kOnes;       // FECN, BECN, reserved bits
  return crc32_update(kCrcStart, masked.data(), 8 + ip_len + sizeof(wire::Udp) + kBthBytes);
}

std::uint32_t icrc_of(const Packet& head, const IcrcLayout& layout, std::size_t end) {
  std::uint32_t crc = icrc_headers(head.data, layout);
  std::size_t from = layout.udp + sizeof(wire::Udp) + kBthBytes;
  for (const Packet* p = &head; p != nullptr && end != 0; p = p->next_segment) {
    const std::size_t here = std::min<std::size_t>(p->len, end);
    if (from < here) crc = crc32_update(crc, p->data + from, here - from);
    from -= std::min(from, here);
    end -= here;
  }
  return icrc_finish(crc);
}

}  // namespace bypass::rdma
