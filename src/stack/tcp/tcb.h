// Tcb: one connection, as it lies in the arena. Everything that a rebuild needs is in here: the flow
// table, the timer wheel and the lists that link Tcbs are indices and can be made anew from the slab.
//
// Send positions are 64-bit stream offsets. Position 0 is the first byte; SYN has the number before it; FIN takes the
// position after the last byte. On the wire a position is seq_base + its low 32 bits:
//
//      0            snd_una           snd_nxt           text_end()
//      |  acknowledged |  in flight      |  not sent yet   |FIN
//
// A position equals the send ring's offset of the same number, unless an overlay maps positions.
//
// Receive side (RFC 9293 figure 4): rcv_nxt, and rcv_adv, the promised right edge. rcv_adv never moves back, except at
// low memory (kLowMemory).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stack/address.h"
#include "stack/events.h"
#include "stack/frame/packet.h"
#include "stack/ip/network.h"
#include "stack/memory/memory.h"
#include "stack/tcp/congestion/congestion.h"
#include "stack/tcp/engine.h"
#include "stack/tcp/flow_table.h"
#include "stack/tcp/input/reassembly.h"
#include "stack/tcp/output/busy_times.h"
#include "stack/tcp/output/sack_scoreboard.h"
#include "stack/tcp/output/send_ring.h"
#include "stack/tcp/rtt.h"
#include "stack/tcp/seq.h"
#include "stack/time.h"
#include "stack/timer_wheel.h"

namespace bypass::tcp {

struct Overlay;  // overlay.h

enum TcbFlag : std::uint32_t {
  // What the connection agreed on
  kTimestamps = 1U << 0,
  kSackPermitted = 1U << 1,
  kWindowScaling = 1U << 2,
  // Acknowledging
  kAckNow = 1U << 3,      // send an ACK at the end of the burst
  kAckDelayed = 1U << 4,  // something waits to be acknowledged
  // Sending
  kHoldMore = 1U << 5,       // MSG_MORE: a partial segment waits for the next write, or for an ACK
  kTryOutput = 1U << 6,      // window, cwnd or ring changed in this burst
  kMore = 1U << 7,           // the last write had MSG_MORE: its end gets no PSH
  kPersist = 1U << 8,        // the retransmission slot holds the persist timer
  kForceOutput = 1U << 9,    // persist or cork ran out, or TCP_NODELAY was set: send a partial segment
  kWantWritable = 1U << 10,  // a writer found too little room
  kFinQueued = 1U << 11,     // our direction is shut; FIN follows the last byte
  kFinSent = 1U << 12,
  // Receiving
  kFinSeen = 1U << 13,      // the peer's FIN came; rcv_fin says where
  kFinReceived = 1U << 14,  // the FIN and everything before it came
  kHoles = 1U << 15,        // frames wait in the reassembly queue
  kReceiveShut = 1U << 16,  // shutdown(SHUT_RD)
  kLowMemory = 1U << 17,    // memory was used up: segments are taken one at a time
  // How it was opened, and its state
  kPassive = 1U << 18,   // made by a listener
  kHalfOpen = 1U << 19,  // in SYN-RECEIVED, counted in its listener's SYN queue
  kOrphan = 1U << 20,    // its socket is closed
  kDeferred = 1U << 21,  // established, but TCP_DEFER_ACCEPT waits for data; counted by its listener
  kSynLost = 1U << 22,   // the handshake took a retransmission
  kInFlowTable = 1U << 23,
  kSteered = 1U << 24,        // has a steering rule of its own
  kSynOwed = 1U << 25,        // SYN or SYN-ACK found no room on the device
  kRetransmitNow = 1U << 26,  // a loss event began: one segment whatever cwnd says (RFC 6675 §5 step 4.3)
  // Lists that link it; a Tcb goes back to the slab only when no list links it
  kInBurst = 1U << 27,
  kBlocked = 1U << 28,    // output waits for room on the device
  kPinned = 1U << 29,     // frames that refer to the send ring are not yet known to be sent
  kAccepting = 1U << 30,  // in its listener's accept queue
  kZombie = 1U << 31,     // the last list to unlink it frees it
};

/// One deadline for each purpose. The wheel holds the Tcb once, at the earliest deadline or sooner.
enum class Timer : std::uint8_t {
  kRetransmit,  // SYN, data, FIN; or the persist timer: never both (RFC 9293 §3.8.6.1)
  kDelayedAck,
  kIdle,  // keep-alive, FIN-WAIT-2 of an orphan, deferred accept
};
inline constexpr std::size_t kTimers = 3;

struct alignas(64) Tcb {
  // --- Line 0: found, and told about
  // A part that ends in padding is followed by fields that fit into the padding: with some ten thousand connections,
  // each cache line counts.
  [[no_unique_address]] EventNode event;  // first: the socket layer knows a Tcb by it
  std::uint32_t flags = 0;
  [[no_unique_address]] FlowNode flow;
  State state = State::kClosed;
  std::uint8_t rcv_scale = 0, snd_scale = 0;
  std::uint8_t quick_acks = 0;  // ACKs to send at once before delaying begins
  std::uint8_t probes = 0;      // unanswered keep-alives or window probes
  std::uint8_t attempts = 0;    // attempts to send SYN or SYN-ACK
  std::uint8_t why = 0;         // Why of the last change of state
  Overlay* overlay = nullptr;   // the bytes are another protocol's (overlay.h)
  Tcb* burst_next = nullptr;

  // --- Line 1: header prediction
  SeqNum rcv_nxt{}, rcv_adv{}, last_ack_sent{};
  std::uint32_t ts_recent = 0;  // RFC 7323 TS.Recent
  std::uint64_t snd_una = 0, snd_nxt = 0;
  SeqNum seq_base{};  // the number of position 0: ISS + 1
  std::uint32_t snd_wnd = 0;
  Packet* rx_head = nullptr;  // in-order frames not yet read, through queue_next
  Packet* rx_tail = nullptr;
  std::uint32_t rx_bytes = 0;     // payload in them
  std::uint32_t rx_truesize = 0;  // buffers that they and those in `reassembly` hold

  // --- Line 2: bookkeeping of every segment
  std::uint64_t received = 0;      // stream offset of rcv_nxt
  Instant last_received{};         // arrival of the last acceptable segment
  std::uint32_t last_sent_ms = 0;  // when data was sent last: milliseconds_of()
  std::uint32_t segments_in = 0;   // modulo 2^32, for TCP_INFO, as segments_out and retransmits
  std::array<Instant, kTimers> deadline{kNever, kNever, kNever};
  std::uint32_t ts_offset = 0;
  std::uint16_t mss = 536;      // payload bytes of our full segment, timestamps deducted
  std::uint16_t rcv_mss = 536;  // the size that the peer's full segments seem to have, for ACKs and window
  SeqNum snd_wl1{}, snd_wl2{};

  // --- Sending
  [[no_unique_address]] Path path;
  std::uint16_t peer_mss = 536;  // the peer's MSS option
  [[no_unique_address]] SendRing ring;
  std::uint32_t max_snd_wnd = 0;  // largest window the peer has offered
  Scoreboard scoreboard;
  [[no_unique_address]] RttProbe probe;
  bool starved : 1 = false;  // it waits for memory
  bool counted : 1 = false;  // it is an orphan, counted in Core::orphans
  bool refused : 1 = false;  // a writer found no room, and was not told of room since
  Limit limit : 2 = Limit::kIdle;
  bool usage_limited = false;  // cwnd was the limit of usage_flight
  std::uint8_t peer_said = 0;  // what the peer's SYN option said, as Hooks understand it; 0: nothing
  [[no_unique_address]] RttEstimator rtt;
  std::uint16_t own_mss = 536;     // our MSS option
  std::uint32_t usage_flight = 0;  // the largest flight until usage_end
  SeqNum small_end{};              // behind the last partial segment (Minshall's variant of Nagle)
  [[no_unique_address]] CongestionControl congestion;
  Error error = Error::kNone;
  Error soft_error = Error::kNone;  // what ICMP said, in case the connection times out (RFC 5461)
  SeqNum usage_end{};               // usage_flight and usage_limited hold until this is acknowledged
  std::uint32_t progress_ms = 0;    // time of the oldest unanswered transmission, or of the last answer (RFC 5482)
  SeqNum rcv_fin{};                 // the number of the peer's FIN

  // --- Cold
  Reassembly reassembly;
  std::uint32_t rcv_limit = 0;   // receive buffer now, bytes of payload
  std::uint32_t rcv_copied = 0;  // consumed in this round of the window's tuning
  union {
    std::uint32_t accept_order = 0;  // its order in the accept queue
    std::uint32_t last_data_ms;      // later: when data arrived last (milliseconds_of), for TCP_INFO
  };
  std::uint32_t rcv_round = 0;   // when the round began: microseconds_of()
  std::uint32_t challenged = 0;  // time of the last challenge ACK: milliseconds_of() | 1; 0: none
  std::uint32_t retransmits = 0;
  [[no_unique_address]] TimerNode wheel;
  std::uint32_t segments_out = 0;
  Tcb* accept_next = nullptr;  // next in the accept queue; later, next of those that wait for memory
  Tcb* blocked_next = nullptr;
  Tcb* pinned_next = nullptr;
  SlotId listener;  // the listener that made it
  Options options;
  BusyTimes busy_times;
  std::uint64_t bytes_retransmitted = 0;

  [[nodiscard]] bool has(std::uint32_t f) const { return (flags & f) != 0; }
  void set(std::uint32_t f) { flags |= f; }
  void clear(std::uint32_t f) { flags &= ~f; }

  [[nodiscard]] SeqNum seq_of(std::uint64_t position) const { return seq_base + static_cast<std::uint32_t>(position); }
  /// The position of a sequence number less than 2^31 away from SND.UNA.
  [[nodiscard]] std::uint64_t position_of(SeqNum s) const { return stream_offset(s, seq_of(snd_una), snd_una); }
  /// The position after the last byte to be sent. Positions are the ring's offsets, or an overlay says what they are.
  [[nodiscard]] std::uint64_t text_end() const { return overlay == nullptr ? ring.end() : mapped_end(); }
  [[nodiscard, gnu::pure]] std::uint64_t mapped_end() const;
  /// The position after everything that will be sent, FIN included.
  [[nodiscard]] std::uint64_t send_end() const { return text_end() + (has(kFinQueued) ? 1 : 0); }
  [[nodiscard]] std::uint32_t in_flight() const { return static_cast<std::uint32_t>(snd_nxt - snd_una); }
  [[nodiscard]] std::uint64_t unsent() const {
    const std::uint64_t end = text_end();
    return end > snd_nxt ? end - snd_nxt : 0;
  }
  /// How many of the program's bytes have not left yet, in a segment or otherwise.
  [[nodiscard]] std::uint64_t program_unsent() const { return overlay == nullptr ? unsent() : mapped_unsent(); }
  [[nodiscard, gnu::pure]] std::uint64_t mapped_unsent() const;
  [[nodiscard]] std::uint32_t rcv_wnd() const { return after(rcv_adv, rcv_nxt) ? distance(rcv_nxt, rcv_adv) : 0; }
  /// Bytes in the receive queue.
  [[nodiscard]] std::uint64_t queued() const { return overlay == nullptr ? rx_bytes : overlaid_queued(); }
  [[nodiscard, gnu::pure]] std::uint64_t overlaid_queued() const;
  [[nodiscard]] bool orphan() const { return has(kOrphan); }
};

static_assert(offsetof(Tcb, event) == 0);
static_assert(offsetof(Tcb, rcv_nxt) == 64, "what finds a connection fills line 0");
static_assert(offsetof(Tcb, received) == 128, "header prediction reads line 1");
static_assert(offsetof(Tcb, path) <= 200, "every segment's bookkeeping ends with line 2");
static_assert(sizeof(Tcb) <= 704, "an idle connection costs this and nothing else of TCP's");

}  // namespace bypass::tcp
