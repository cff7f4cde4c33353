// Framed: TCP connections whose peer may be accelerated, too. It joins the handshake (handshake.h), the records
// (control.h) and the lane (lane.h) to a TCP connection of stack/tcp, as its overlay.
//
//   FramedTcp framed(stack.tcp(), config, links);
//   ctx.hooks = &framed.hooks();      // from then on SYNs carry the option where links.wanted() says so
//
// A connection without the option has no overlay and never comes here. One with an overlay begins undecided and
// becomes, each direction for itself, framed or plain. Found plain in both before anything was framed, it loses its
// overlay and is TCP's alone: so the one that holds a Tcb asks FramedTcp::has() at each call, and hands the call to
// tcp::Engine or here. The calls here have the meaning, the results and the events (EventNode) of the Engine's calls
// of the same name.
//
//   sending     kUndecided ──client armed, magic_c seen──► kFramed ──REVERT──► kRaw      kUndecided ──► no overlay
//   receiving   kUndecided ──magic──► kFramed ──REVERT──► kRaw;   kUndecided ──other bytes──► kRaw
//
// FIN and half-close are records while a direction is framed. TCP's FIN follows when both directions are over: first
// from the end that has ended first, whose TIME-WAIT it is, as if there were no records.
//
// Records are made when TCP has room for them: control at once, DATA when all that was handed to TCP before has left.
// Until then bytes stay in the send ring alone, free to go over a lane.
//
// FramedTcp both tells and looks. What was placed in our ring, or read out of it, and is too little to be told by
// itself, is told kQuiet later (Lane::tell), by the connection's own timer in the stack's wheel. The writer's block is
// looked at whenever the program asks for room, and at each turn of the connection; nothing waits for it: who waits for
// room says BLOCKED and is woken by a message.
//
// FramedTcp is private to a process, as a Context is; Framed lies in the arena, in the overlay's block. Everything is
// called with the shard's lock held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>

#include "fastpath/framed/control.h"
#include "fastpath/framed/handshake.h"
#include "fastpath/lane/lane.h"
#include "stack/context.h"
#include "stack/tcp/output/overlay.h"

namespace bypass::fastpath {

struct Framed;

/// The process's links, and what it decides about lanes.
class Links {
 public:
  Links() = default;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  virtual ~Links() = default;

  /// Whether a connection may be framed: policy, the peer's address, and what the peer's SYN or SYN-ACK says (null: our
  /// own SYN is to be sent).
  [[nodiscard]] virtual bool wanted(const tcp::Tcb& tcb, const SynOption* theirs) = 0;
  /// The handshake is over, and nothing came of it: the peer has not answered, or not asked.
  virtual void on_plain(const tcp::Tcb&) {}
  /// What on_plain() is to know of the peer's option (Tcb::peer_said); not 0.
  [[nodiscard]] virtual std::uint8_t note_of(const SynOption&) const { return 1; }
  /// The memory that the peer of that link writes; empty: it is not known here.
  [[nodiscard]] virtual std::span<const std::byte> memory(std::uint32_t link) = 0;
  /// Whether the link of the connection's lane can read its send ring where it lies.
  [[nodiscard]] virtual bool reads_ring(const tcp::Tcb&, const Framed&) { return true; }
  /// The connection was written to or read, or something has come for it. Here an offer is made, answered
  /// (Lane::offer, accept, decline), a lane that is open is used (FramedTcp::cut) or left (Lane::leave), a link that is
  /// suspect failed, a lane that is detached taken out of its LinkEnd's table, and one that is open enqueued there.
  virtual void on_change(Context& ctx, tcp::Tcb& tcb, Framed& framed) = 0;
  /// A LINK_* record: its body is valid for the call.
  virtual void on_link_record(Context&, tcp::Tcb&, Framed&, const Record&, std::span<const std::byte>) {}
  /// Whether there is a LINK_* record to be sent on this connection; and the next one, its body into `body`
  /// (kMaxLinkBody).
  [[nodiscard]] virtual bool has_link_record(const tcp::Tcb&, const Framed&) { return false; }
  virtual Record next_link_record(tcp::Tcb&, Framed&, std::span<std::byte>) { return {}; }
  /// The connection goes. What the link still needs of the lane (RESET to be said, an answer that is awaited) is to be
  /// copied. True: writes that were posted may still read from the send ring: its block stays until
  /// tcp::unpin_ring().
  virtual bool on_gone(Context& ctx, tcp::Tcb& tcb, Framed& framed) = 0;
};

struct FramedConfig {
  HandshakeConfig handshake;
  std::uint32_t tcp_window = 256U << 10;         // LaneConfig's
  Duration fin_wait = std::chrono::seconds(60);  // how long a closed end waits for the peer's end
};

/// One connection's state.
struct Framed {
  enum class Mode : std::uint8_t { kUndecided, kFramed, kRaw };

  explicit Framed(const LaneConfig& config) : lane(config) {}
  /// Lanes may be offered, and LINK_* records sent.
  [[nodiscard]] bool both_framed() const {
    return sending == Mode::kFramed && receiving == Mode::kFramed && !revert_owed;
  }

  /// Bytes of one direction at least travel on a lane.
  [[nodiscard]] bool on_lane() const { return lane.tx_path() == TxPath::kLane || lane.rx_path() == RxPath::kLane; }

  /// Changes with every byte of the stream, sent or taken by the program.
  [[nodiscard]] std::uint32_t activity() const {
    return static_cast<std::uint32_t>(lane.next_offset() + lane.consumed());
  }

  /// The program has read.
  void note_read() {
    small_writes = 0;
    written = static_cast<std::uint32_t>(lane.end());
    lane.gather(Lane::Gather::kNothing);
  }

  Lane lane;
  Decoder decoder;
  std::variant<ClientHandshake, ServerHandshake> handshake{ClientHandshake{{}}};
  std::uint64_t raw_next = 0;    // kRaw: the next byte of the send ring that the map has not got
  std::uint64_t heard = 0;       // bytes that the program has been told of
  std::uint64_t raw_read = 0;    // kRaw: bytes read that no record carried
  Instant quiet = kNever;        // when news are to be told
  Instant patience = kNever;     // when a closed connection gives its peer up
  Instant corked = kNever;       // when what a cork holds leaves all the same
  Instant waits_since = kNever;  // a writer has waited for room, and nothing was placed …
  Mode sending = Mode::kUndecided, receiving = Mode::kUndecided;
  std::uint8_t magic_left = 0;  // bytes of the peer's magic still in front
  // What has happened
  bool revert_owed = false;
  bool shut = false;          // the program ends its direction
  bool shut_receive = false;  // and reads no more
  bool refused = false;       // bytes that came after both: they are not to be read, and the connection was reset
  bool ended_first = false;
  bool closed = false;  // there is no socket any more
  bool tcp_end_seen = false;
  bool pinned = false;            // the send ring, for the lane's writes
  bool wants_room = false;        // somebody waits for room in the send buffer
  bool dry = false;               // a record found no memory; it is tried again soon
  std::uint8_t small_writes = 0;  // one behind the other, nothing read in between
  bool wrote_much = false;        // the last write was no less than what is gathered
  std::uint32_t written = 0;      // Lane::end() when the program last read: its low half
  std::uint32_t waits_at = 0;     // … behind this place in the send ring (its low half), on whichever path
  // For Links
  std::uint16_t place = kNoLane;  // the lane's number on …
  std::uint32_t link = 0;         // … this link; 0: it is on none
  std::uint32_t tried = 0;        // the last link that a lane was looked for on; it is looked for again …
  std::uint32_t tried_round = 0;  // … after that round of the link's,
  std::uint32_t tried_at = 0;     // and once activity() is another
};

static_assert(std::is_trivially_destructible_v<Framed>, "it goes with its block");
static_assert(sizeof(tcp::Overlay) + sizeof(Framed) <= 1024, "what a framed connection costs beside its Tcb");

class FramedTcp {
 public:
  /// `links` outlives it.
  FramedTcp(tcp::Engine& engine, const FramedConfig& config, Links& links);
  FramedTcp(const FramedTcp&) = delete;
  FramedTcp& operator=(const FramedTcp&) = delete;

  /// For Context::hooks; `self` is taken.
  [[nodiscard]] const Hooks& hooks() const { return hooks_; }
  [[nodiscard]] static bool has(const tcp::Tcb& tcb) { return tcb.overlay != nullptr; }
  /// Both ends are in framed mode, and ours may still send records: no FIN ends it.
  [[nodiscard]] static bool may_speak(const tcp::Tcb& tcb);
  [[nodiscard]] static Framed& of(tcp::Tcb& tcb) { return *reinterpret_cast<Framed*>(tcb.overlay->state()); }
  [[nodiscard]] static const Framed& of(const tcp::Tcb& tcb) {
    return *reinterpret_cast<const Framed*>(tcb.overlay->state());
  }

  // --- Sending: see tcp::Engine
  [[nodiscard]] std::size_t send_room(tcp::Tcb& tcb);
  /// Somebody waits until a third of the send buffer is free (sk_stream_is_writeable), or finds that it is: true.
  bool want_room(Context& ctx, tcp::Tcb& tcb);
  Result<tcp::Room> reserve(Context& ctx, tcp::Tcb& tcb, std::size_t want);
  /// `urgent`: the last byte is (MSG_OOB).
  void commit(Context& ctx, tcp::Tcb& tcb, std::size_t bytes, bool more, bool urgent = false);
  void set_options(Context& ctx, tcp::Tcb& tcb, const tcp::Options& options);
  void push(Context& ctx, tcp::Tcb& tcb);
  [[nodiscard]] std::size_t unacknowledged(Context& ctx, tcp::Tcb& tcb);
  /// For PeerLinks: a write of so many bytes, of a steady connection, needs no look for room and is none of little ones
  /// that are gathered; such a write has been committed to tcp::Engine, and may be gathered as one of many.
  [[nodiscard]] bool may_write_at_once(const tcp::Tcb& tcb, std::size_t bytes) const;
  static void note_write(tcp::Tcb& tcb, std::size_t bytes);
  /// What the send ring holds at least once it is pinned for the lane, where there is memory: as much as the peer's.
  [[nodiscard]] std::size_t ring_bytes(const tcp::Tcb& tcb, const Framed& framed) const;

  // --- Receiving
  [[nodiscard]] std::size_t readable(const tcp::Tcb& tcb) const;
  /// More than is readable can not come before the program reads.
  [[nodiscard]] static bool is_full(const tcp::Tcb& tcb) {
    const Framed& framed = of(tcb);
    return framed.receiving == Framed::Mode::kFramed && framed.lane.is_full();
  }
  std::size_t peek(const tcp::Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes = SIZE_MAX) const;
  void consume(Context& ctx, tcp::Tcb& tcb, std::size_t bytes);
  [[nodiscard]] bool at_eof(const tcp::Tcb& tcb) const;
  /// The peer will send no more (poll's RDHUP): what tcp::Engine::state() says of a plain connection.
  [[nodiscard]] bool peer_has_ended(const tcp::Tcb& tcb) const;
  /// Our direction is shut, and the peer has all of it (SO_LINGER).
  [[nodiscard]] bool delivered(const tcp::Tcb& tcb) const;
  /// Bytes that can be read up to and with the last urgent one (SIOCATMARK); 0: there is none in front.
  [[nodiscard]] std::uint64_t before_urgent_mark(const tcp::Tcb& tcb) const;

  /// Of TCP without records: what our end and the peer's make of it, whichever way they went.
  [[nodiscard]] tcp::State state(const tcp::Tcb& tcb) const;

  // --- Ending
  void shutdown_send(Context& ctx, tcp::Tcb& tcb);
  void shutdown_receive(Context& ctx, tcp::Tcb& tcb);
  void close(Context& ctx, tcp::Tcb& tcb);
  void abort(Context& ctx, tcp::Tcb& tcb);

  // --- The links' side
  /// The lane carries what the program writes from now on; Lane::can_cut() must hold. From on_change() or outside.
  void cut(tcp::Tcb& tcb);
  /// The connection's turn: after the link has failed or is final.
  void run(Context& ctx, tcp::Tcb& tcb) { tcp::run_overlay(engine_, ctx, tcb); }
  /// Its turn after LinkEnd has taken messages for its lane, or has written some.
  void run_lane(Context& ctx, tcp::Tcb& tcb);
  /// Both directions are on the lane and none has anything to say over TCP: a call or a message changes nothing but the
  /// lane.
  [[nodiscard]] static bool is_steady(const tcp::Tcb& tcb, const Framed& framed);
  /// For LinkEnd's table.
  [[nodiscard]] static ByteSource source(const tcp::Tcb& tcb);

 private:
  struct Sifting;

  // --- Hooks (framed_handshake.cc, framed.cc)
  std::size_t add_option(tcp::Tcb& tcb, bool syn_ack, unsigned attempt, std::span<std::byte> room);
  void see_option(tcp::Tcb& tcb, bool syn_ack, const SynOption& option);
  void established(Context& ctx, tcp::Tcb& tcb, bool bare);
  void progress(Context& ctx, tcp::Tcb& tcb);
  bool refill(Context& ctx, tcp::Tcb& tcb);
  void gone(Context& ctx, tcp::Tcb& tcb);

  // --- A turn's steps
  [[nodiscard]] bool decide(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void decide_sending(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void receive(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void take_tcp_end(tcp::Tcb& tcb, Framed& framed);
  void send_control(tcp::Tcb& tcb, Framed& framed);
  void send_links_records(tcp::Tcb& tcb, Framed& framed);
  void send_revert(tcp::Tcb& tcb, Framed& framed);
  void send_raw(tcp::Tcb& tcb, Framed& framed);
  void send_end(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void release(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void pin(tcp::Tcb& tcb, Framed& framed);
  void ask_for_room(const tcp::Tcb& tcb, Framed& framed);
  void wait_for_room(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void tell_program(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void tell_peer(Context& ctx, Framed& framed);
  [[nodiscard]] bool given_up(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void arm(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  static void look_at_cork(const Context& ctx, Framed& framed);
  static void look_at_writer(const Context& ctx, const tcp::Tcb& tcb, Framed& framed);
  [[nodiscard]] static Instant leaves_at(const Framed& framed);
  [[nodiscard]] static Instant times_out_at(const tcp::Tcb& tcb, const Framed& framed);
  /// Room for a record with `own` bytes of its own. False: there is no memory now; the connection has a turn soon.
  bool prepare(tcp::Tcb& tcb, Framed& framed, std::uint32_t own);
  bool send_record(tcp::Tcb& tcb, Framed& framed, std::uint32_t most_data);
  static void end_lane(const tcp::Tcb& tcb, Framed& framed);
  void over(Context& ctx, tcp::Tcb& tcb, Framed& framed);

  tcp::Engine& engine_;
  FramedConfig config_;
  Links& links_;
  Hooks hooks_;
};

}  // namespace bypass::fastpath
