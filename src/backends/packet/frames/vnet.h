// The virtio_net_hdr in front of a frame. By it the kernel and we tell each other what the frame itself does not say:
// whether a checksum is still to be filled in or need not be verified, and the segment size of a frame longer than the
// MTU. Both packet sockets (PACKET_VNET_HDR) and tap devices (IFF_VNET_HDR) have it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/frame/packet.h"

namespace bypass::packet {

/// Used instead of <linux/virtio_net.h>, which is no C++ and does not know every kind before Linux 6.2.
struct VnetHeader {
  enum Flag : std::uint8_t { kNeedsChecksum = 1, kChecksumGood = 2 };
  enum Segmentation : std::uint8_t { kNone = 0, kTcp4 = 1, kTcp6 = 4, kUdpDatagrams = 5 };

  std::uint8_t flags;
  std::uint8_t gso_type;
  std::uint16_t hdr_len;  // the length of the headers from Ethernet to L4
  std::uint16_t gso_size;
  // kNeedsChecksum: where the summed bytes begin, and where in them the sum goes
  std::uint16_t csum_start, csum_offset;

  [[nodiscard]] unsigned segmentation() const { return gso_type & ~kEcn; }

 private:
  static constexpr unsigned kEcn = 0x80;
};
static_assert(sizeof(VnetHeader) == 10);

/// The header for a frame to send.
VnetHeader header_of(const Packet& frame);

/// Sets the packet's flags from a received frame's header.
void note_header(const VnetHeader& header, Packet& frame);

/// The most pieces that gather() makes of a frame: 64 KiB in the pool's buffers, and two pieces outside the pool.
inline constexpr std::size_t kMaxPieces = 16;

/// Puts the frame's pieces in order; returns how many. A frame with more pieces does not come from this plugin's pool.
std::size_t gather(const Packet& frame, std::span<iovec> out);

}  // namespace bypass::packet
