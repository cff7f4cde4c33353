// TCP options on the wire (RFC 9293 §3.2): parses received ones, writes those to be sent.
//
// Parsing takes untrusted bytes. An option with a length beyond the header, or below 2, makes the whole list an error.
// A known kind with a wrong length is skipped, as in Linux, so that a middlebox's mistake costs the option and not the
// connection. Of a repeated option the last one counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "stack/address.h"
#include "stack/result.h"
#include "stack/tcp/seq.h"

namespace bypass::tcp {

inline constexpr std::size_t kMaxOptionBytes = 40;
inline constexpr std::size_t kTimestampsBytes = 12;  // NOP NOP TS, as RFC 7323 appendix A lays it out
inline constexpr std::size_t kMaxSackBlocks = 4;     // without timestamps; 3 beside them
inline constexpr std::uint8_t kMaxWindowScale = 14;  // RFC 7323 §2.3

/// The options of a received segment. MSS, window scale and SACK permitted are valid on a SYN only. The parser does not
/// know the flags and reports them on every segment.
struct SegmentOptions {
  std::uint32_t ts_value = 0, ts_echo = 0;
  std::uint16_t mss = 0;          // 0: absent
  std::uint8_t window_scale = 0;  // already limited to kMaxWindowScale
  std::uint8_t sack_count = 0;
  std::uint8_t unknown_count = 0;  // number of options for unknown_options()
  bool has_timestamps = false, has_window_scale = false, sack_permitted = false;
  // the first sack_count blocks, in wire order, not checked against any window
  std::array<SackBlock, kMaxSackBlocks> sack;

  [[nodiscard]] std::span<const SackBlock> sack_blocks() const { return {sack.data(), sack_count}; }
};

/// An option that the stack does not know.
struct UnknownOption {
  std::uint8_t kind = 0;
  std::span<const std::byte> body;  // without kind and length
};

/// Parses options of any layout into `out`, which must be newly made. False: a length is illegal.
[[nodiscard]] bool parse_any_options(std::span<const std::byte> options, SegmentOptions& out);

/// The same, with the usual layout of established connections (NOP NOP TS and nothing else) inline.
[[nodiscard]] inline bool parse_options(std::span<const std::byte> options, SegmentOptions& out) {
  std::uint32_t word[3];
  if (options.size() != kTimestampsBytes) return parse_any_options(options, out);
  std::memcpy(word, options.data(), sizeof word);
  if (word[0] != host_to_be32(0x0101080a)) return parse_any_options(options, out);
  out.ts_value = be32_to_host(word[1]);
  out.ts_echo = be32_to_host(word[2]);
  out.has_timestamps = true;
  return true;
}

/// The same as a value: kProtocol for an illegal length.
inline Result<SegmentOptions> parse_options(std::span<const std::byte> options) {
  SegmentOptions out;
  if (!parse_options(options, out)) return Error::kProtocol;
  return out;
}

/// Writes the unknown options of a list that parse_options() accepted, in order. Returns how many are in `out`.
std::size_t unknown_options(std::span<const std::byte> options, std::span<UnknownOption> out);

// --- Building. All lengths returned are multiples of 4; `room` holds at least what the size function says.

struct SynOptions {
  std::uint16_t mss = 0;          // 0: left out
  bool sack_permitted = false;    // a SYN-ACK: only if the SYN had it
  bool timestamps = false;        // likewise
  bool window_scaling = false;    // likewise
  std::uint8_t window_scale = 0;  // our shift
  std::uint32_t ts_value = 0, ts_echo = 0;
};
/// Writes at most 20 bytes.
std::size_t write_syn_options(std::span<std::byte> room, const SynOptions& options);
/// After a hook has appended its own options, fills up to the next multiple of 4; returns the new length.
std::size_t pad_options(std::span<std::byte> room, std::size_t used);

/// Bytes that write_options() will take.
constexpr std::size_t options_size(bool timestamps, std::size_t sack_blocks) {
  return (timestamps ? kTimestampsBytes : 0) + (sack_blocks == 0 ? 0 : 4 + 8 * sack_blocks);
}
/// How many SACK blocks fit beside the other options of a segment.
constexpr std::size_t max_sack_blocks(bool timestamps) {
  return timestamps ? kMaxSackBlocks - 1 : kMaxSackBlocks;
}

inline void write_timestamps(std::byte* at, std::uint32_t value, std::uint32_t echo) {
  const std::uint32_t word[3] = {host_to_be32(0x0101080a), host_to_be32(value), host_to_be32(echo)};
  std::memcpy(at, word, sizeof word);
}
/// Writes NOP NOP SACK with as many of the blocks as fit into `room`; 0 if no block fits.
std::size_t write_sack(std::span<std::byte> room, std::span<const SackBlock> blocks);

}  // namespace bypass::tcp
