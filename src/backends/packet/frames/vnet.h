// The virtio_net_hdr in front of a frame, by which the kernel and we tell one another what is not on the wire. That is
// a checksum that is still to be made, or need not be looked at, and the segments' size of a frame longer than the MTU.
// Both packet sockets (PACKET_VNET_HDR) and tap devices (IFF_VNET_HDR) have it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/frame/packet.h"

namespace bypass::packet {

/// <linux/virtio_net.h> is no C++ and, before Linux 6.2, does not know every kind.
struct VnetHeader {
  enum Flag : std::uint8_t { kNeedsChecksum = 1, kChecksumGood = 2 };
  enum Segmentation : std::uint8_t { kNone = 0, kTcp4 = 1, kTcp6 = 4, kUdpDatagrams = 5 };

  std::uint8_t flags;
  std::uint8_t gso_type;
  std::uint16_t hdr_len;  // Ethernet to L4
  std::uint16_t gso_size;
  std::uint16_t csum_start, csum_offset;  // kNeedsChecksum: of what is summed, and where in it the sum goes

  [[nodiscard]] unsigned segmentation() const { return gso_type & ~kEcn; }

 private:
  static constexpr unsigned kEcn = 0x80;
};
static_assert(sizeof(VnetHeader) == 10);

/// Of a frame to send.
VnetHeader header_of(const Packet& frame);

/// What a received frame's header says, as the packet's flags.
void note_header(const VnetHeader& header, Packet& frame);

/// Most pieces that gather() makes of one frame: 64 KiB in the pool's buffers, and two pieces outside of them.
inline constexpr std::size_t kMaxPieces = 16;

/// The frame's pieces, in order; returns how many. A frame of more does not come from this plugin's pool.
std::size_t gather(const Packet& frame, std::span<iovec> out);

}  // namespace bypass::packet
