// Packets whose memory is the arena's: one block each, which begins with the Packet header. A port and its frames
// belong to one process; the arena belongs to the family. So these packets hold what must outlive a port's frame:
// datagrams that wait long, what a host sends to itself, and what a family's processes share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/context.h"
#include "stack/frame/packet.h"
#include "stack/frame/packet_list.h"
#include "stack/memory/memory.h"

namespace bypass {

/// An empty packet with `headroom` bytes in front and room for at least `bytes`. Null if memory is used up.
[[nodiscard]] Packet* allocate_arena_packet(Memory& memory, std::uint32_t headroom, std::size_t bytes);

/// The same for received bytes, which may be kept for long. It uses the memory for bulk bytes. Only an acknowledgement
/// and similar packets, which bring memory back, may use more.
[[nodiscard]] Packet* allocate_received(Memory& memory, std::size_t bytes);

/// Copies the whole frame (chain and external bytes) into one arena packet, including metadata and scratch fields.
[[nodiscard]] Packet* copy_to_arena(Memory& memory, const Packet& frame);
/// The same, but may use the last of the memory that is kept back from bulk bytes: kInReserve.
[[nodiscard]] Packet* copy_to_kept_back(Memory& memory, const Packet& frame);

/// A chain of empty packets for at least `bytes`, over as many blocks as needed to waste little.
[[nodiscard]] Packet* allocate_arena_chain(Memory& memory, std::size_t bytes);

/// Gives a packet back. It is one block that begins with its header, and so is each further segment. Null: does
/// nothing.
void release_arena_packet(Memory& memory, Packet* packet);

/// For Memory's rebuild: marks all blocks of a packet. False: one of them is no block, or has another owner.
[[nodiscard]] bool mark_arena_packet(Memory& memory, const Packet& packet);

/// Returns the packet that takes a held frame's place: a copy in the arena; the frame is given back to its port.
/// Returns the frame itself if it is in the arena already, memory is used up, or its port is not open in this process.
/// The packet is in no list either way.
[[nodiscard]] Packet* move_to_arena(Context& ctx, Packet* frame);

/// Does the same for each packet of a list, in order. Returns how many still belong to a port.
std::size_t move_to_arena(Context& ctx, PacketList& list);

/// The opposite, for sending: copies an outgoing packet (headers in its first buffer) to a frame of that port. The
/// frame is a chain if one buffer is too small. Flags (but kInArena), header lengths and tso_mss are copied; the port
/// must be able to do what the flags ask for. `packet` stays the caller's. Null if the port has too few buffers.
[[nodiscard]] Packet* to_device_frame(PortQueue& queue, const Packet& packet);

/// Bytes of arena that a packet of so many bytes uses.
[[nodiscard]] std::size_t arena_packet_size(std::size_t bytes_and_headroom);

}  // namespace bypass
