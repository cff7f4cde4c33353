#include "stack/tcp/input/options.h"

#include <algorithm>

namespace bypass::tcp {
namespace {

// https://www.iana.org/assignments/tcp-parameters: kinds, and the lengths of those that have one.
enum Kind : std::uint8_t {
  kEnd = 0,
  kNop = 1,
  kMss = 2,
  kWindowScale = 3,
  kSackPermitted = 4,
  kSack = 5,
  kTimestamps = 8,
};
constexpr std::size_t kMssLength = 4, kWindowScaleLength = 3, kSackPermittedLength = 2, kTimestampsLength = 10;

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t i) {
  return std::to_integer<std::uint8_t>(bytes[i]);
}
std::uint16_t be16_at(std::span<const std::byte> bytes, std::size_t i) {
  std::uint16_t v;
  std::memcpy(&v, bytes.data() + i, sizeof v);
  return be16_to_host(v);
}
std::uint32_t be32_at(std::span<const std::byte> bytes, std::size_t i) {
  std::uint32_t v;
  std::memcpy(&v, bytes.data() + i, sizeof v);
  return be32_to_host(v);
}

/// The length of the option at `at`; 0 if it is illegal. NOP has length 1, END the length of the rest.
std::size_t option_length(std::span<const std::byte> options, std::size_t at) {
  const std::uint8_t kind = byte_at(options, at);
  if (kind == kNop) return 1;
  if (kind == kEnd) return options.size() - at;
  if (at + 1 >= options.size()) return 0;
  const std::size_t length = byte_at(options, at + 1);
  return length < 2 || length > options.size() - at ? 0 : length;
}

bool is_known(std::uint8_t kind) {
  return kind <= kSack || kind == kTimestamps;
}

void take_sack(SegmentOptions& out, std::span<const std::byte> option) {
  const std::size_t blocks = (option.size() - 2) / 8;
  if (blocks == 0 || option.size() != 2 + 8 * blocks) return;
  out.sack_count = static_cast<std::uint8_t>(std::min(blocks, kMaxSackBlocks));
  for (std::size_t i = 0; i < out.sack_count; i++)
    out.sack[i] = {{be32_at(option, 2 + 8 * i)}, {be32_at(option, 6 + 8 * i)}};
}

void take_option(SegmentOptions& out, std::span<const std::byte> option) {
  switch (byte_at(option, 0)) {
    case kMss:
      if (option.size() == kMssLength) out.mss = be16_at(option, 2);
      break;
    case kWindowScale:
      if (option.size() != kWindowScaleLength) break;
      out.has_window_scale = true;
      out.window_scale = std::min(byte_at(option, 2), kMaxWindowScale);
      break;
    case kSackPermitted:
      if (option.size() == kSackPermittedLength) out.sack_permitted = true;
      break;
    case kSack:
      take_sack(out, option);
      break;
    case kTimestamps:
      if (option.size() != kTimestampsLength) break;
      out.has_timestamps = true;
      out.ts_value = be32_at(option, 2);
      out.ts_echo = be32_at(option, 6);
      break;
    default:
      out.unknown_count++;
  }
}

void put32(std::span<std::byte> room, std::size_t at, std::uint32_t host) {
  const std::uint32_t wire = host_to_be32(host);
  std::memcpy(room.data() + at, &wire, sizeof wire);
}

}  // namespace

bool parse_any_options(std::span<const std::byte> options, SegmentOptions& out) {
  for (std::size_t at = 0; at < options.size();) {
    const std::size_t length = option_length(options, at);
    if (length == 0) return false;
    const std::uint8_t kind = byte_at(options, at);
    if (kind != kNop && kind != kEnd) take_option(out, options.subspan(at, length));
    at += length;
  }
  return true;
}

std::size_t unknown_options(std::span<const std::byte> options, std::span<UnknownOption> out) {
  std::size_t found = 0;
  for (std::size_t at = 0; at < options.size() && found < out.size();) {
    const std::size_t length = option_length(options, at);
    if (length == 0) break;
    const std::uint8_t kind = byte_at(options, at);
    if (!is_known(kind)) out[found++] = {kind, options.subspan(at + 2, length - 2)};
    at += length;
  }
  return found;
}

// The order is Linux's, which middleboxes have seen most: MSS, SACK permitted and timestamps in one
// aligned group, NOP and window scale.
std::size_t write_syn_options(std::span<std::byte> room, const SynOptions& options) {
  std::size_t used = 0;
  const auto word = [&](std::uint32_t v) {
    put32(room, used, v);
    used += 4;
  };
  if (options.mss != 0) word(kMss << 24 | kMssLength << 16 | options.mss);
  const std::uint32_t head = options.sack_permitted ? kSackPermitted << 8 | kSackPermittedLength : kNop << 8 | kNop;
  if (options.timestamps) {
    word(head << 16 | kTimestamps << 8 | kTimestampsLength);
    word(options.ts_value);
    word(options.ts_echo);
  } else if (options.sack_permitted) {
    word((kNop << 8 | kNop) << 16 | head);
  }
  if (options.window_scaling) word(kNop << 24 | kWindowScale << 16 | kWindowScaleLength << 8 | options.window_scale);
  return used;
}

std::size_t pad_options(std::span<std::byte> room, std::size_t used) {
  while (used % 4 != 0) room[used++] = std::byte{kEnd};
  return used;
}

std::size_t write_sack(std::span<std::byte> room, std::span<const SackBlock> blocks) {
  if (blocks.empty() || room.size() < options_size(false, 1)) return 0;
  const std::size_t count = std::min({blocks.size(), (room.size() - 4) / 8, kMaxSackBlocks});
  put32(room, 0, static_cast<std::uint32_t>((kNop << 8 | kNop) << 16 | kSack << 8 | (2 + 8 * count)));
  for (std::size_t i = 0; i < count; i++) {
    put32(room, 4 + 8 * i, blocks[i].begin.v);
    put32(room, 8 + 8 * i, blocks[i].end.v);
  }
  return options_size(false, count);
}

}  // namespace bypass::tcp
