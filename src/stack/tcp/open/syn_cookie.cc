#include "stack/tcp/open/syn_cookie.h"

#include <array>
#include <cstring>
#include <iterator>

namespace bypass::tcp {
namespace {

// Common values: RFC 9293's least, tunnels, PPPoE, Ethernet, jumbo frames. An MSS between two values is rounded
// down.
constexpr std::uint16_t kMss[] = {536, 1220, 1300, 1400, 1440, 1460, 4016, 8960};

constexpr unsigned kMinuteShift = 24;
constexpr std::uint32_t kLow = (1U << kMinuteShift) - 1;

constexpr std::uint32_t kNoScale = 15, kScaleMask = 15, kSackBit = 16, kOptionBits = 31;

std::uint32_t minute_of(Instant now) {
  return static_cast<std::uint32_t>(now.time_since_epoch() / std::chrono::minutes(1));
}

// initial_sequence() and cookies hash inputs of different lengths, so the one secret serves both.
std::uint32_t hash(const Secret& secret, const FlowKey& key, std::uint32_t minute, std::uint32_t part) {
  std::array<std::byte, 44> input{};
  std::memcpy(input.data(), key.local.bytes.data(), 16);
  std::memcpy(input.data() + 16, key.remote.bytes.data(), 16);
  std::memcpy(input.data() + 32, &key.local_port, 2);
  std::memcpy(input.data() + 34, &key.remote_port, 2);
  std::memcpy(input.data() + 36, &minute, 4);
  std::memcpy(input.data() + 40, &part, 4);
  return static_cast<std::uint32_t>(siphash24(secret, input));
}

}  // namespace

SeqNum make_cookie(const Secret& secret, const FlowKey& key, SeqNum peer, std::uint16_t mss, Instant now) {
  std::uint32_t index = std::size(kMss) - 1;
  while (index != 0 && kMss[index] > mss) index--;
  const std::uint32_t minute = minute_of(now);
  const std::uint32_t low = (hash(secret, key, minute, 1) + index) & kLow;
  return SeqNum{hash(secret, key, 0, 0) + (minute << kMinuteShift) + low} + peer.v;
}

std::optional<std::uint16_t> read_cookie(const Secret& secret, const FlowKey& key, SeqNum peer, SeqNum cookie,
                                         Instant now) {
  const std::uint32_t rest = cookie.v - peer.v - hash(secret, key, 0, 0);
  const std::uint32_t age = (minute_of(now) - (rest >> kMinuteShift)) & 0xff;
  if (age >= kCookieLifetime / std::chrono::minutes(1)) return std::nullopt;
  const std::uint32_t index = (rest - hash(secret, key, minute_of(now) - age, 1)) & kLow;
  if (index >= std::size(kMss)) return std::nullopt;
  return kMss[index];
}

std::uint32_t make_cookie_timestamp(std::uint32_t clock, const SegmentOptions& syn) {
  const std::uint32_t bits = (syn.has_window_scale ? syn.window_scale : kNoScale) | (syn.sack_permitted ? kSackBit : 0);
  const std::uint32_t value = (clock & ~kOptionBits) | bits;
  return value > clock ? value - (kOptionBits + 1) : value;
}

SegmentOptions read_cookie_timestamp(std::uint32_t echo) {
  SegmentOptions options;
  options.has_timestamps = true;
  options.sack_permitted = (echo & kSackBit) != 0;
  options.has_window_scale = (echo & kScaleMask) != kNoScale;
  options.window_scale = options.has_window_scale ? static_cast<std::uint8_t>(echo & kScaleMask) : 0;
  return options;
}

}  // namespace bypass::tcp
