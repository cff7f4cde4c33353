// Puts one segment on the wire: a frame, its payload from the send ring, the header before it.
//
// Every function returns whether (or how much) went out. Nothing goes out if the device's ring is full or its pool is
// empty. A caller with state then calls block(), and output goes on at a later poll. A segment without state (RST, ACK
// of TIME_WAIT) is lost like any segment.
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

/// A segment that belongs to no connection.
struct Detached {
  FlowKey key;
  SeqNum seq{}, ack{};
  std::uint16_t window = 0;
  std::uint8_t flags = 0, tos = 0, ttl = 64;
  bool timestamps = false;
  std::uint32_t ts_value = 0, ts_echo = 0;
};
/// False: the device has no room, or there is no frame.
bool send_detached(Env& env, const Detached& segment);
/// Sends the SYN-ACK of a listener that remembers nothing: `cookie` is its number, and the SYN's options lie in its
/// timestamp. It carries no options of hooks.
bool send_cookie_syn_ack(Env& env, const FlowKey& key, SeqNum cookie, const Segment& syn, const Options& options);
/// Sends a connection's RST again; false as send_detached().
bool send_farewell(Env& env, const RecentReset& recent_reset);
/// Sends it again, with the question that a peer with other numbers answers with its own numbers. False: the RST was
/// not sent, as send_detached().
bool repeat_farewell(Env& env, const RecentReset& recent_reset);
/// RFC 9293 §3.10.7.1: sends the RST that answers an unexpected segment; no answer to an RST or a broadcast.
void answer_with_reset(Env& env, const Segment& segment);

}  // namespace bypass::tcp
