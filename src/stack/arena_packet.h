// Packets whose memory is the arena's: one block each, which begins with the Packet header. They carry what must
// outlive a port's frame: datagrams that wait long, and what a host sends to itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/memory.h"
#include "stack/packet.h"

namespace bypass {

/// An empty packet with `headroom` bytes in front and room for at least `bytes`. Null when memory is used up.
[[nodiscard]] Packet* allocate_arena_packet(Memory& memory, std::uint32_t headroom, std::size_t bytes);

/// The whole frame (chain and external bytes) as one arena packet; metadata and scratch fields come along.
[[nodiscard]] Packet* copy_to_arena(Memory& memory, const Packet& frame);

/// Bytes of arena that a packet of so many bytes takes.
[[nodiscard]] std::size_t arena_packet_size(std::size_t bytes_and_headroom);

}  // namespace bypass
