// Overlay: a connection under another protocol, whose records TCP carries. The program's bytes lie in them: sent
// positions are mapped (send_map.h), received bytes are looked through before they count as the program's.
//
// TCP knows nothing of the protocol. The protocol that offered an option in SYN or SYN-ACK and saw the peer's (Hooks)
// creates the overlay. From then on its hooks are called. It alone says what is sent, what is the program's, what the
// program hears of, and when FIN follows. Segmenting, retransmission, SACK, timers and windows stay TCP's.
//
//   receive queue   | ready: the program's | rx_bytes: not looked at, or of no records |
//   TCP's window                            ^^^^^^^^^ counts these alone; how much may be ready is the protocol's
//   affair
//
// A connection without one pays for a predicted branch where positions are turned into bytes.
//
// It lies in one block of the arena, with the protocol's own state behind it, and goes with the Tcb. All functions are
// called with the shard's lock held; from a hook, or from outside, where run() is to follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/tcp/core.h"
#include "stack/tcp/output/send_map.h"

namespace bypass::tcp {

struct Overlay {
  SendMap map;
  Packet* sifted = nullptr;   // the last packet of the receive queue that has been looked at
  std::uint64_t taken = 0;    // the ring's bytes below it have been handed to the map, or went another way
  Instant deadline = kNever;  // the protocol's timer
  std::uint64_t heard = 0;    // of the peer, by whatever way, when keep-alive last looked
  std::uint32_t ready = 0;    // bytes in front of the receive queue that are the program's; not in rx_bytes
  std::uint16_t events = 0;   // posted while nobody had accepted the connection
  bool pins_ring = false;     // pin_ring(), of the ring's pins one
  bool roomy = false;         // what the congestion window says of the send buffer's size does not count
  bool shut = false;          // our direction has its end: the protocol says so to the peer …
  bool delivered = false;     // … which has all of it
  bool peer_ended = false;    // the peer's has its end, as by a FIN

  /// The protocol's state.
  [[nodiscard]] std::byte* state() { return reinterpret_cast<std::byte*>(this + 1); }
  [[nodiscard]] const std::byte* state() const { return reinterpret_cast<const std::byte*>(this + 1); }
};

/// What sift() is told of the bytes it shows.
struct Sifted {
  enum class As : std::uint8_t {
    kRecord,   // the protocol's own: gone
    kProgram,  // ready for the program
    kRest,     // these and all that follow, for good, are the program's and counted by TCP's window
    kStop,     // look no further now
  };
  As as = As::kStop;
  std::uint32_t bytes = 0;
};
struct Sifter {
  void* self;
  Sifted (*next)(void* self, std::span<const std::byte> bytes);  // never empty
};

/// Puts a connection that has sent nothing under a protocol whose state takes `state_bytes`. Null without memory.
[[nodiscard]] void* create_overlay(Engine& engine, Tcb& tcb, std::size_t state_bytes);
/// Plain TCP after all. Only while positions are the ring's offsets and nothing has been sifted. What was written is
/// sent.
void drop_overlay(Engine& engine, Context& ctx, Tcb& tcb);

/// The protocol's hook is called, then output goes on: after anything was changed from outside of a hook. The
/// connection may be gone afterwards if it had no socket.
void run_overlay(Engine& engine, Context& ctx, Tcb& tcb);

// --- Sending
/// Makes room in the map for a record of so many bytes of its own. False: wait until more is acknowledged.
[[nodiscard]] bool prepare_record(Engine& engine, Tcb& tcb, std::uint32_t own);
/// After it: the record, and the ring's bytes behind it (none: 0). `urgent`: not for Nagle's algorithm to hold back.
void append_record(Tcb& tcb, std::span<const std::byte> own, std::uint64_t source, std::uint64_t bytes, bool urgent);
/// The send ring's bytes below `una` are not needed any more, whatever TCP has acknowledged.
void release_sent(Engine& engine, Context& ctx, Tcb& tcb, std::uint64_t una);
/// The ring's block may not move while somebody else reads from it.
void pin_ring(Tcb& tcb);
void unpin_ring(Engine& engine, Context& ctx, Tcb& tcb);

// --- Receiving
/// Shows all bytes that have not been looked at, piece by piece.
void sift(Engine& engine, Context& ctx, Tcb& tcb, const Sifter& sifter);
/// The first bytes not looked at, up to out.size(); returns how many.
[[nodiscard]] std::size_t first_bytes(const Tcb& tcb, std::span<std::byte> out);
/// As Engine::peek, from `skip` bytes on.
std::size_t peek_from(const Tcb& tcb, std::uint64_t skip, std::span<std::span<const std::byte>> out, std::size_t bytes);
/// Whether the peer's FIN has come and all before it has been looked at.
[[nodiscard]] bool peer_has_ended(const Tcb& tcb);

// --- Events and the end
void post_events(Engine& engine, Tcb& tcb, std::uint16_t events);
/// Calls the hook at `at`, or never.
void set_deadline(Engine& engine, Context& ctx, Tcb& tcb, Instant at);
/// TCP_DEFER_ACCEPT: there are bytes of the program's.
void end_deferral(Engine& engine, Context& ctx, Tcb& tcb);
/// The socket is gone; the protocol ends the connection in its own way.
void orphan(Engine& engine, Tcb& tcb);
/// FIN behind everything.
void send_fin(Engine& engine, Context& ctx, Tcb& tcb);
/// RST, and the socket sees `error`.
void fail(Engine& engine, Context& ctx, Tcb& tcb, Error error);

// --- For TCP's parts
/// Nobody calls a hook for a connection without one.
void call_progress(Env& env, Tcb& tcb);
/// False: there is nothing more to send.
[[nodiscard]] bool call_refill(Env& env, Tcb& tcb);
/// Whether the peer has been heard of since the last call, by ways that TCP does not see.
[[nodiscard]] bool is_heard_of(Env& env, Tcb& tcb);
/// SND.UNA has moved.
void on_overlay_acked(Env& env, Tcb& tcb);
void tell_established(Env& env, Tcb& tcb, bool bare);
/// Whether a segment carries anything of the program's.
[[nodiscard]] bool has_program_bytes(const Tcb& tcb, std::uint64_t position, std::uint64_t length);
/// The Tcb goes.
void destroy_overlay(Env& env, Tcb& tcb);

}  // namespace bypass::tcp
