// Incoming segments: bursts, header prediction, and RFC 9293 §3.10.7 step by step.
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
/// Sends an ACK that may answer a forgery, rate-limited for each connection (RFC 5961 §7). A limit shared by
/// connections would tell a stranger about the others (CVE-2016-5696).
void challenge(Env& env, Tcb& tcb);
/// Sends an ACK for a segment outside the window: at once for text, otherwise rate-limited, as two confused peers would
/// answer each other for ever.
void answer_unacceptable(Env& env, Tcb& tcb, const Segment& segment);

// --- input_ack.cc
/// SND.UNA moves up by `acked` numbers.
void on_new_ack(Env& env, Tcb& tcb, const Segment& segment, std::uint32_t acked);
/// Takes an ACK that acknowledges nothing new: duplicates, SACK, and ACKs that later ones have overtaken.
void on_old_ack(Env& env, Tcb& tcb, const Segment& segment);
/// The round-trip time that an ACK shows; zero: none (RFC 6298 §3, RFC 7323 §4). It comes from the segment timed here,
/// or else from the echoed timestamp. The timestamp is also valid for what was sent again, but counts in milliseconds.
Duration take_sample(Env& env, Tcb& tcb, const Segment& segment);
/// RFC 9293 §3.10.7.4 step 5, SND.WND.
void update_window(Env& env, Tcb& tcb, const Segment& segment);
/// How many more bytes TCP_NOTSENT_LOWAT lets a writer add.
[[nodiscard]] std::size_t admitted_unsent(const Tcb& tcb);
/// Whether TCP_NOTSENT_LOWAT allows an event for writers that wait or poll.
[[nodiscard]] bool may_tell_of_room(const Tcb& tcb);
/// Posts kEventWritable for a writer that found too little room, once a third is free.
void wake_writer(Env& env, Tcb& tcb);
/// How many bytes the send ring may hold: SO_SNDBUF's, or as much as congestion control needs (for an overlay's ring:
/// what was pinned).
[[nodiscard]] std::uint32_t send_limit(const Core& core, const Tcb& tcb);
/// The largest value that send_limit() can ever have.
[[nodiscard]] std::uint32_t most_send_buffer(const Core& core, const Tcb& tcb);

// --- input_data.cc
/// Takes text that begins at RCV.NXT and lies inside the window.
void accept_in_order(Env& env, Tcb& tcb, Segment& segment);
/// Takes text at any place: trims it to the window, and delivers it or keeps it for reassembly.
void accept_text(Env& env, Tcb& tcb, Segment& segment);
/// Takes the peer's FIN if everything before it is here.
void take_fin(Env& env, Tcb& tcb);
/// An ACK is due at the end of the burst.
void ack_soon(Env& env, Tcb& tcb);
/// Gives back a list of frames that the connection has held.
void release_held(Env& env, Tcb& tcb, Packet* list);
/// Moves the connection's received frames to the arena. While a thread reads them, moves only those after a hole.
/// Returns how many still belong to a port.
std::size_t move_to_arena(Env& env, Tcb& tcb, bool being_read);
/// The memory that a queued frame holds.
[[nodiscard]] std::uint32_t truesize(const Packet& frame);

// --- input_syn.cc
void on_syn_sent(Env& env, Tcb& tcb, Segment& segment);
/// Takes the SYN's options: keeps what both sides support.
void negotiate(Env& env, Tcb& tcb, const Segment& segment);

}  // namespace bypass::tcp
