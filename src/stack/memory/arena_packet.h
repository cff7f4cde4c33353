// Packets whose memory is the arena's: one block each, which begins with the Packet header. They carry what must
// outlive a port's frame: datagrams that wait long, what a host sends to itself, and what a family of processes
// shares: a port and its frames are one process's, the arena is all of theirs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/context.h"
#include "stack/frame/packet.h"
#include "stack/frame/packet_list.h"
#include "stack/memory/memory.h"

namespace bypass {

/// An empty packet with `headroom` bytes in front and room for at least `bytes`. Null when memory is used up.
[[nodiscard]] Packet* allocate_arena_packet(Memory& memory, std::uint32_t headroom, std::size_t bytes);

/// The same for what has been received, and may be kept for long: of memory for bytes in bulk, but for an
/// acknowledgement and its like, which bring memory back.
[[nodiscard]] Packet* allocate_received(Memory& memory, std::size_t bytes);

/// The whole frame (chain and external bytes) as one arena packet; metadata and scratch fields come along.
[[nodiscard]] Packet* copy_to_arena(Memory& memory, const Packet& frame);
/// The same in what bytes in bulk leave alone, to the last of it: kInReserve.
[[nodiscard]] Packet* copy_to_kept_back(Memory& memory, const Packet& frame);

/// The same for at least `bytes`, over as many blocks as it takes to waste little: a chain of empty packets.
[[nodiscard]] Packet* allocate_arena_chain(Memory& memory, std::size_t bytes);

/// Gives a packet back: it is one block that begins with its header, and so is each further segment. Null: nothing.
void release_arena_packet(Memory& memory, Packet* packet);

/// For Memory's rebuild: all blocks of a packet. False: one of them is not a block, or is somebody else's.
[[nodiscard]] bool mark_arena_packet(Memory& memory, const Packet& packet);

/// What stands in a held frame's place from now on: its copy in the arena, the frame itself given back to its port.
/// The frame as it was where it is the arena's already, memory is used up, or its port is not open in this process.
/// In no list either way.
[[nodiscard]] Packet* move_to_arena(Context& ctx, Packet* frame);

/// The same for each packet of a list, in its order. Returns how many are still a port's.
std::size_t move_to_arena(Context& ctx, PacketList& list);

/// The opposite, to send it: an outgoing packet (its headers in its first buffer) as a frame of that port, which is
/// a chain where one buffer does not hold it. Flags (but kInArena), header lengths and tso_mss come along; the port
/// must be able to do what the flags ask for. `packet` stays the caller's. Null when the port has too few buffers.
[[nodiscard]] Packet* to_device_frame(PortQueue& queue, const Packet& packet);

/// Bytes of arena that a packet of so many bytes takes.
[[nodiscard]] std::size_t arena_packet_size(std::size_t bytes_and_headroom);

}  // namespace bypass
