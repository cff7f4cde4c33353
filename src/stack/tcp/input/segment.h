// Segment: one received TCP segment. Its header is read and its options are parsed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/frame/wire.h"
#include "stack/ip/network.h"
#include "stack/tcp/input/options.h"
#include "stack/tcp/seq.h"

namespace bypass::tcp {

enum HeaderFlag : std::uint8_t {
  kFin = 1 << 0,
  kSyn = 1 << 1,
  kRst = 1 << 2,
  kPsh = 1 << 3,
  kAck = 1 << 4,
  kUrg = 1 << 5,
};

/// RFC 9293 §3.1.
struct TcpHeader {
  wire::Be16 source, destination;
  wire::Be32 seq, ack;
  std::uint8_t data_offset;  // in its upper half, 4-byte words
  std::uint8_t flags;
  wire::Be16 window;
  wire::Be16 checksum;
  wire::Be16 urgent;
  [[nodiscard]] std::size_t header_len() const { return std::size_t{data_offset} >> 4 << 2; }
};
static_assert(sizeof(TcpHeader) == 20);

struct Segment {
  const L4Input* input = nullptr;
  Packet* packet = nullptr;  // null after the packet was taken over
  SeqNum seq{}, ack{};
  std::uint16_t window = 0;  // as the wire shows it
  std::uint8_t flags = 0;
  std::uint8_t header_len = 0;
  bool of_syn = false;       // it came with a SYN: the window is not scaled (RFC 7323 §2.2)
  std::uint32_t offset = 0;  // the payload's offset from packet->data
  std::uint32_t payload = 0;
  SegmentOptions options;

  [[nodiscard]] bool has(std::uint8_t f) const { return (flags & f) != 0; }
  /// SEG.LEN: payload and the numbers that SYN and FIN take.
  [[nodiscard]] std::uint32_t length() const { return payload + (has(kSyn) ? 1 : 0) + (has(kFin) ? 1 : 0); }
  [[nodiscard]] SeqNum end() const { return seq + length(); }
  [[nodiscard]] std::span<const std::byte> option_bytes() const {
    return {packet->data + input->l4_offset + sizeof(TcpHeader), header_len - sizeof(TcpHeader)};
  }
};

inline const TcpHeader& header_of(const L4Input& input) {
  return wire::at<TcpHeader>(*input.packet, input.l4_offset);
}

/// Reads header and options. False: malformed.
inline bool read_segment(const L4Input& input, Segment& out) {
  const TcpHeader& h = header_of(input);
  const std::size_t header_len = h.header_len();
  if (header_len < sizeof(TcpHeader) || header_len > input.l4_len) return false;
  if (input.l4_offset + header_len > input.packet->len) return false;
  out.input = &input;
  out.packet = input.packet;
  out.seq = {h.seq};
  out.ack = {h.ack};
  out.window = h.window;
  out.flags = h.flags;
  out.header_len = static_cast<std::uint8_t>(header_len);
  out.offset = static_cast<std::uint32_t>(input.l4_offset + header_len);
  out.payload = static_cast<std::uint32_t>(input.l4_len - header_len);
  if (header_len == sizeof(TcpHeader)) return true;
  return parse_options(out.option_bytes(), out.options);
}

}  // namespace bypass::tcp
