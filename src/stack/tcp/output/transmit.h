// Puts one segment on the wire: a frame, its payload from the send ring, the header before it.
//
// Every function returns whether (or how much) went out. Nothing goes out if the device's ring is full or its pool is
// empty. The caller then calls block(), and output goes on at a later poll. Segments that belong to no connection:
// detached.h.
#pragma once

#include <cstdint>

#include "stack/tcp/core.h"
#include "stack/tcp/input/segment.h"

namespace bypass::tcp {

/// Payload of at least this length is referred to, not copied, if the port can read the arena.
inline constexpr std::uint32_t kGatherBytes = 512;

/// The timestamp clock ticks every 2^20 ns, 1.05 ms (RFC 7323 §5.4 asks for 1 ms to 1 s).
inline constexpr unsigned kTimestampShift = 20;
inline std::uint32_t timestamp_clock(Instant now) {
  return static_cast<std::uint32_t>(now.time_since_epoch().count() >> kTimestampShift);
}

/// Payload bytes that a single frame to the connection's port may carry (above mss: TSO).
[[nodiscard]] std::uint32_t frame_limit(Env& env, const Tcb& tcb);
/// Payload bytes of a full segment now: SACK blocks in the segment take room.
[[nodiscard]] std::uint32_t segment_room(const Tcb& tcb);

/// Sends the ring's bytes [position, position + length), and FIN after them if `flags` says so. Returns the payload
/// bytes sent, which may be fewer if frames run short; nullopt if nothing went out.
std::optional<std::uint32_t> send_data(Env& env, Tcb& tcb, std::uint64_t position, std::uint32_t length,
                                       std::uint8_t flags);
/// Sends SYN or SYN-ACK, as the state requires.
bool send_syn(Env& env, Tcb& tcb);
/// A segment without payload at `seq`: ACK, probe, RST.
bool send_empty(Env& env, Tcb& tcb, SeqNum seq, std::uint8_t flags);
inline bool send_ack(Env& env, Tcb& tcb) {
  return send_empty(env, tcb, tcb.seq_of(tcb.snd_nxt), kAck);
}
/// Sends an RST with the next number that the peer expects (RFC 9293 §3.10.5); the caller changes the state. It ends a
/// connection at its peer. It is sent again if the link comes up within RecentResets::kLifetime, and later if the
/// device has no room.
void send_reset(Env& env, Tcb& tcb);
/// What send_reset() notes so that the RST can be sent again; `asks`: see RecentReset::asks.
RecentReset note_farewell(Env& env, const Tcb& tcb, bool asks = false);

/// Output goes on when the device has room.
void block(Env& env, Tcb& tcb);
/// The list's part of block(), for a connection that is already marked as waiting.
void queue_blocked(Env& env, Tcb& tcb);

}  // namespace bypass::tcp
