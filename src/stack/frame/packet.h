// Packet: the view of one buffer of a frame, and the only form in which bytes cross the Port.
//
// The header lies in front of the data, in memory that the port owns: a DPDK mbuf's private area, a
// verbs buffer's head, a slot of the simulated wire. A frame longer than one buffer is a chain through
// `next_segment`; its first Packet is the frame's head and carries the frame's totals and metadata.
// Headers (up to L4) always lie in the head; a port that cannot promise this copies them there.
//
// Ownership: the holder of the head owns the frame, with all its segments. It is given back with
// Port::free (or, for packets made in the arena, to the arena), which `Context::release` tells apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass {

enum PacketFlag : std::uint16_t {
  // Received frames
  kRxIpChecksumGood = 1 << 0,  // the port verified the IPv4 header checksum
  kRxL4ChecksumGood = 1 << 1,  // … or the peer vouches for it (virtio: NEEDS_CSUM, VALID)
  kRxChecksumBad = 1 << 2,     // the port found a wrong checksum: drop and count
  kRxLro = 1 << 3,             // several wire segments in one frame; `tso_mss` is the segment size if known
  // Frames to send
  kTxIpChecksum = 1 << 4,  // the port fills the IPv4 header checksum (field is 0)
  kTxL4Checksum = 1 << 5,  // the port fills the L4 checksum (field holds the pseudo-header sum)
  kTxTso = 1 << 6,         // the port cuts the payload into tso_mss pieces
  // Where the memory came from
  kInArena = 1 << 7,  // the buffer is the arena's, not a port's
  // Received frames, again
  kRxArrival = 1 << 8,  // the port says when it arrived (arrival.h)
  // A copy in memory that bytes in bulk leave to all else (Memory::keep_back): the one that has nothing else may keep
  // it.
  kInReserve = 1 << 9,
};

struct Packet {
  std::byte* data;          // first valid byte of this segment
  std::uint32_t len;        // valid bytes in this segment
  std::uint32_t frame_len;  // head only: valid bytes of the whole chain, and of `external`
  Packet* next_segment;     // further buffers of the same frame
  Packet* queue_next;       // the one that owns the frame links it here
  std::byte* buffer;        // start of the buffer; data - buffer is the headroom
  std::uint32_t capacity;   // bytes of the buffer from `buffer` on
  std::uint16_t flags;      // PacketFlag
  std::uint16_t port;       // index of the port the frame belongs to
  std::uint16_t l2_len;     // set when sending with offloads: 14, IP header length, TCP/UDP header length
  std::uint16_t l3_len;
  std::uint16_t l4_len;
  std::uint16_t tso_mss;  // payload bytes of each wire segment
  // Bytes outside of the buffer that follow this (single-segment) head on the wire: a send buffer's
  // bytes, which may wrap once. Only towards ports with PortCaps::gather; they stay in place until the
  // port has sent them, which a synchronous port has when send() returns.
  const std::byte* external[2];
  std::uint32_t external_len[2];
  // The owner's scratch: TCP keeps the sequence number and the payload's place while it queues a segment.
  std::uint32_t seq;
  std::uint32_t offset;  // bytes of the chain already consumed, or where the payload starts
  std::uint32_t payload_len;
  std::uint32_t owner_generation;  // which opening of the port owns it (families: a dead owner's frames are gone)
  std::uint32_t scratch[2];

  [[nodiscard]] std::span<std::byte> bytes() { return {data, len}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data, len}; }
  [[nodiscard]] std::size_t headroom() const { return static_cast<std::size_t>(data - buffer); }
  [[nodiscard]] std::size_t tailroom() const { return capacity - headroom() - len; }

  /// An empty frame that starts `headroom` bytes into its buffer; forgets everything else.
  void reset(std::uint32_t headroom_bytes) {
    data = buffer + headroom_bytes;
    len = frame_len = 0;
    next_segment = queue_next = nullptr;
    flags = static_cast<std::uint16_t>(flags & kInArena);
    l2_len = l3_len = l4_len = tso_mss = 0;
    external[0] = external[1] = nullptr;
    external_len[0] = external_len[1] = 0;
    seq = offset = payload_len = 0;
  }
};
static_assert(sizeof(Packet) <= 128, "a Packet header is two cache lines, the size of an mbuf's private area");

/// Bytes of memory that a frame holds, with all its buffers.
[[nodiscard]] inline std::uint32_t memory_of(const Packet& frame) {
  std::uint32_t bytes = 0;
  for (const Packet* p = &frame; p != nullptr; p = p->next_segment)
    bytes += static_cast<std::uint32_t>(sizeof(Packet)) + p->capacity;
  return bytes;
}

/// Room that a sender leaves in front of the payload: Ethernet, IPv6, TCP with all options, and slack
/// that keeps the payload 64-byte aligned.
inline constexpr std::uint32_t kTxHeadroom = 128;

}  // namespace bypass
