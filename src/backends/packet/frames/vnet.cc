#include "backends/packet/frames/vnet.h"

namespace bypass::packet {
namespace {

constexpr std::uint16_t kUdpHeader = 8;
constexpr std::uint16_t kUdpChecksumAt = 6, kTcpChecksumAt = 16;  // RFC 768; RFC 9293 §3.1

bool is_v4(const Packet& frame) {
  return (std::to_integer<unsigned>(frame.data[frame.l2_len]) >> 4) == 4;
}

iovec piece(const std::byte* bytes, std::size_t length) {
  return {const_cast<std::byte*>(bytes), length};
}

}  // namespace

VnetHeader header_of(const Packet& frame) {
  VnetHeader header{};
  if ((frame.flags & (kTxL4Checksum | kTxTso)) == 0) return header;
  header.flags = VnetHeader::kNeedsChecksum;
  header.csum_start = static_cast<std::uint16_t>(frame.l2_len + frame.l3_len);
  header.csum_offset = frame.l4_len == kUdpHeader ? kUdpChecksumAt : kTcpChecksumAt;
  if ((frame.flags & kTxTso) != 0) {
    header.gso_type = is_v4(frame) ? VnetHeader::kTcp4 : VnetHeader::kTcp6;
    header.gso_size = frame.tso_mss;
    header.hdr_len = static_cast<std::uint16_t>(frame.l2_len + frame.l3_len + frame.l4_len);
  }
  return header;
}

void note_header(const VnetHeader& header, Packet& frame) {
  unsigned flags = 0;
  if ((header.flags & (VnetHeader::kNeedsChecksum | VnetHeader::kChecksumGood)) != 0) flags |= kRxL4ChecksumGood;
  if (header.segmentation() != VnetHeader::kNone) {
    flags |= kRxLro;
    frame.tso_mss = header.gso_size;
  }
  frame.flags = static_cast<std::uint16_t>(flags);
}

std::size_t gather(const Packet& frame, std::span<iovec> out) {
  std::size_t n = 0;
  for (const Packet* p = &frame; p != nullptr && n + 2 < out.size(); p = p->next_segment)
    out[n++] = piece(p->data, p->len);
  for (int i = 0; i < 2; i++)
    if (frame.external_len[i] != 0) out[n++] = piece(frame.external[i], frame.external_len[i]);
  return n;
}

}  // namespace bypass::packet
