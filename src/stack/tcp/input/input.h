// Segments in: bursts, header prediction, and RFC 9293 §3.10.7 step by step.
//
//   input.cc       the burst, look-up, header prediction
//   input_steps.cc §3.10.7.4's checks in their order: sequence, RST, SYN, ACK, text, FIN
//   input_ack.cc   what an acceptable ACK does
//   input_data.cc  what text and FIN do
//   input_syn.cc   §3.10.7.3: SYN-SENT
#pragma once

#include <cstdint>
#include <span>

#include "stack/tcp/core.h"
#include "stack/tcp/input/segment.h"

namespace bypass::tcp {

enum class Verdict : std::uint8_t {
  kContinue,  // on to the next step
  kDone,      // dropped (and counted), or nothing is left to do
};

void take_burst(Env& env, std::span<L4Input> batch);

// --- input_steps.cc
void process_segment(Env& env, Tcb& tcb, Segment& segment);
/// Counts a drop.
inline Verdict drop(std::uint64_t& counter) {
  counter++;
  return Verdict::kDone;
}
/// An ACK that may answer a forgery: rate-limited for the connection (RFC 5961 §7). A limit that connections share
/// would tell a stranger about the others (CVE-2016-5696).
void challenge(Env& env, Tcb& tcb);
/// An ACK for a segment outside the window: at once for text, else rate-limited, or two confused peers
/// would answer each other for ever.
void answer_unacceptable(Env& env, Tcb& tcb, const Segment& segment);

// --- input_ack.cc
/// SND.UNA moves up by `acked` numbers.
void on_new_ack(Env& env, Tcb& tcb, const Segment& segment, std::uint32_t acked);
/// An ACK that acknowledges nothing new: duplicates, SACK, also of one that others have overtaken.
void on_old_ack(Env& env, Tcb& tcb, const Segment& segment);
/// The round-trip time that an ACK shows, zero if none (RFC 6298 §3, RFC 7323 §4): a segment timed here, else the
/// echoed timestamp, which also holds for what was sent again but counts in milliseconds.
Duration take_sample(Env& env, Tcb& tcb, const Segment& segment);
/// RFC 9293 §3.10.7.4 step 5, SND.WND.
void update_window(Env& env, Tcb& tcb, const Segment& segment);
/// So many more bytes TCP_NOTSENT_LOWAT lets a writer add.
[[nodiscard]] std::size_t admitted_unsent(const Tcb& tcb);
/// Whether it lets writers that wait, or poll, be told of room.
[[nodiscard]] bool may_tell_of_room(const Tcb& tcb);
/// A writer that found too little room is told once a third is free.
void wake_writer(Env& env, Tcb& tcb);
/// Bytes that the send ring may hold: SO_SNDBUF's, or as congestion control goes (an overlay's ring: what was pinned).
[[nodiscard]] std::uint32_t send_limit(const Core& core, const Tcb& tcb);
/// The most that it can ever be.
[[nodiscard]] std::uint32_t most_send_buffer(const Core& core, const Tcb& tcb);

// --- input_data.cc
/// Text that begins at RCV.NXT and lies inside of the window.
void accept_in_order(Env& env, Tcb& tcb, Segment& segment);
/// Text anywhere: trimmed to the window, delivered or kept for reassembly.
void accept_text(Env& env, Tcb& tcb, Segment& segment);
/// The peer's FIN, when everything before it is here.
void take_fin(Env& env, Tcb& tcb);
/// An ACK is due at the end of the burst.
void ack_soon(Env& env, Tcb& tcb);
/// Gives back a list of frames that the connection has kept.
void release_held(Env& env, Tcb& tcb, Packet* list);
/// Moves the connection's received frames to the arena, or only those behind a hole while a thread reads the others.
/// Returns how many are still a port's.
std::size_t move_to_arena(Env& env, Tcb& tcb, bool being_read);
/// The memory that a queued frame holds.
[[nodiscard]] std::uint32_t truesize(const Packet& frame);

// --- input_syn.cc
void on_syn_sent(Env& env, Tcb& tcb, Segment& segment);
/// The SYN's options: what both sides have is kept.
void negotiate(Env& env, Tcb& tcb, const Segment& segment);

}  // namespace bypass::tcp
