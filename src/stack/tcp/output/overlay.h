// Overlay: a connection under another protocol, whose records TCP carries. The program's bytes lie in the records. Sent
// positions are mapped (send_map.h); received bytes are sifted before they count as the program's.
//
// TCP knows nothing of the protocol. The protocol that offered an option in SYN or SYN-ACK and saw the peer's (Hooks)
// creates the overlay. From then on its hooks are called. Only the protocol decides what is sent, which bytes are the
// program's, which events the program gets, and when FIN follows. TCP still does segmenting, retransmission, SACK,
// timers and windows.
//
//   receive queue   | ready: the program's | rx_bytes: not looked at, or of no records |
//   TCP's window                            ^^^^^^^^^ counts these alone; how much may be ready is the protocol's
//   affair
//
// A connection without an overlay costs one predicted branch where positions are turned into bytes.
//
// It lies in one block of the arena, followed by the protocol's own state, and is freed with the Tcb. The caller of
// every function holds the shard's lock. The functions are called from a hook, or from outside; then run() must follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/tcp/core.h"
#include "stack/tcp/output/send_map.h"

namespace bypass::tcp {

struct Overlay {
  SendMap map;
  Packet* sifted = nullptr;   // the last packet of the receive queue that was sifted
  std::uint64_t taken = 0;    // the ring's bytes below this offset were given to the map, or went another way
  Instant deadline = kNever;  // the protocol's timer
  std::uint64_t heard = 0;    // how much had come from the peer, on every path, when keep-alive last looked
  std::uint32_t ready = 0;    // the program's bytes at the front of the receive queue; not in rx_bytes
  std::uint16_t events = 0;   // events posted before the connection was accepted
  bool pins_ring = false;     // whether pin_ring() holds one of the ring's pins
  bool roomy = false;         // the send buffer's size does not follow the congestion window
  bool shut = false;          // our direction has ended: the protocol tells the peer …
  bool delivered = false;     // … and the peer has everything
  bool peer_ended = false;    // the peer's direction has ended, as by a FIN

  /// The protocol's state.
  [[nodiscard]] std::byte* state() { return reinterpret_cast<std::byte*>(this + 1); }
  [[nodiscard]] const std::byte* state() const { return reinterpret_cast<const std::byte*>(this + 1); }
};

/// The answer about bytes that sift() shows.
struct Sifted {
  enum class As : std::uint8_t {
    kRecord,   // the protocol's own: removed
    kProgram,  // ready for the program
    kRest,     // these and all later bytes are the program's for good, and TCP's window counts them
    kStop,     // look no further now
  };
  As as = As::kStop;
  std::uint32_t bytes = 0;
};
struct Sifter {
  void* self;
  Sifted (*next)(void* self, std::span<const std::byte> bytes);  // never empty
};

/// Puts a connection that has sent nothing under a protocol whose state needs `state_bytes`. Null without memory.
[[nodiscard]] void* create_overlay(Engine& engine, Tcb& tcb, std::size_t state_bytes);
/// Makes the connection plain TCP. Only while positions equal the ring's offsets and nothing was sifted. Sends what was
/// written.
void drop_overlay(Engine& engine, Context& ctx, Tcb& tcb);

/// Calls the protocol's hook and continues output. To be called after a change from outside a hook. A connection
/// without a socket may be gone afterwards.
void run_overlay(Engine& engine, Context& ctx, Tcb& tcb);

// --- Sending
/// Makes room in the map for a record that adds `own` bytes. False: wait until more is acknowledged.
[[nodiscard]] bool prepare_record(Engine& engine, Tcb& tcb, std::uint32_t own);
/// To be called after prepare_record(): appends the record, followed by `bytes` of the ring (may be 0). `urgent`:
/// Nagle's algorithm must not hold it back.
void append_record(Tcb& tcb, std::span<const std::byte> own, std::uint64_t source, std::uint64_t bytes, bool urgent);
/// The send ring's bytes below `una` are no longer needed, whatever TCP has acknowledged.
void release_sent(Engine& engine, Context& ctx, Tcb& tcb, std::uint64_t una);
/// The ring's block must not move while others read from it.
void pin_ring(Tcb& tcb);
void unpin_ring(Engine& engine, Context& ctx, Tcb& tcb);

// --- Receiving
/// Shows all bytes that were not sifted yet, piece by piece.
void sift(Engine& engine, Context& ctx, Tcb& tcb, const Sifter& sifter);
/// Copies the first bytes that were not sifted, up to out.size(); returns how many.
[[nodiscard]] std::size_t first_bytes(const Tcb& tcb, std::span<std::byte> out);
/// As Engine::peek, from `skip` bytes on.
std::size_t peek_from(const Tcb& tcb, std::uint64_t skip, std::span<std::span<const std::byte>> out, std::size_t bytes);
/// Whether the peer's FIN has come and everything before it was sifted.
[[nodiscard]] bool peer_has_ended(const Tcb& tcb);

// --- Events and the end
void post_events(Engine& engine, Tcb& tcb, std::uint16_t events);
/// Calls the hook at `at`, or never.
void set_deadline(Engine& engine, Context& ctx, Tcb& tcb, Instant at);
/// Ends TCP_DEFER_ACCEPT's wait: there are bytes of the program's.
void end_deferral(Engine& engine, Context& ctx, Tcb& tcb);
/// The socket is gone; the protocol ends the connection in its own way.
void orphan(Engine& engine, Tcb& tcb);
/// Sends FIN after everything else.
void send_fin(Engine& engine, Context& ctx, Tcb& tcb);
/// Sends RST; the socket sees `error`.
void fail(Engine& engine, Context& ctx, Tcb& tcb, Error error);

// --- For TCP's parts
/// These hooks may be called only for a connection with an overlay.
void call_progress(Env& env, Tcb& tcb);
/// False: there is nothing more to send.
[[nodiscard]] bool call_refill(Env& env, Tcb& tcb);
/// Whether something has come from the peer since the last call, on paths that TCP does not see.
[[nodiscard]] bool is_heard_of(Env& env, Tcb& tcb);
/// SND.UNA has moved.
void on_overlay_acked(Env& env, Tcb& tcb);
void tell_established(Env& env, Tcb& tcb, bool bare);
/// Whether a segment carries any bytes of the program's.
[[nodiscard]] bool has_program_bytes(const Tcb& tcb, std::uint64_t position, std::uint64_t length);
/// The Tcb goes away.
void destroy_overlay(Env& env, Tcb& tcb);

}  // namespace bypass::tcp
