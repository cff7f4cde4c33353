// Framed: TCP connections whose peer may be accelerated, too. It adds the handshake (handshake.h), the records
// (control.h) and the lane (lane.h) to a TCP connection of stack/tcp, as its overlay.
//
//   FramedTcp framed(stack.tcp(), config, links);
//   ctx.hooks = &framed.hooks();      // from then on SYNs carry the option where links.wanted() says so
//
// A connection without the option has no overlay and never comes here. A connection with an overlay begins undecided.
// Then each direction becomes framed or plain by itself. If both turn out plain before anything was framed, the
// connection loses its overlay and is TCP's alone. So the holder of a Tcb asks FramedTcp::has() at each call, and
// passes the call to tcp::Engine or to this class. The calls here have the meaning, results and events (EventNode) of
// the Engine's calls of the same name.
//
//   sending     kUndecided ──client armed, magic_c seen──► kFramed ──REVERT──► kRaw      kUndecided ──► no overlay
//   receiving   kUndecided ──magic──► kFramed ──REVERT──► kRaw;   kUndecided ──other bytes──► kRaw
//
// While a direction is framed, FIN and half-close are records. TCP's FIN follows when both directions are over. The end
// that ended first sends it first and gets TIME-WAIT, as without records.
//
// Records are made when TCP has room for them: control at once, DATA when everything handed to TCP before has left.
// Until then the bytes are in the send ring alone, and may still go over a lane.
//
// A small amount that was placed in our ring, or read from it, is reported kQuiet later (Lane::tell), by the
// connection's own timer in the stack's wheel. The writer's credit block is read whenever the program asks for room,
// and at each turn of the connection. Nothing waits for the block: a writer that waits for room sends BLOCKED and is
// woken by a message.
//
// FramedTcp is private to a process, as a Context is. Framed lies in the arena, in the overlay's block. The caller of
// every function holds the shard's lock.
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

/// The process's links, and its decisions about lanes.
class Links {
 public:
  Links() = default;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  virtual ~Links() = default;

  /// Whether a connection may be framed. It depends on policy, the peer's address, and the option in the peer's SYN or
  /// SYN-ACK (null: our own SYN is about to be sent).
  [[nodiscard]] virtual bool wanted(const tcp::Tcb& tcb, const SynOption* theirs) = 0;
  /// The handshake is over and the connection is plain: the peer has not answered the option, or not sent it.
  virtual void on_plain(const tcp::Tcb&) {}
  /// The note about the peer's option that on_plain() will find in Tcb::peer_said; not 0.
  [[nodiscard]] virtual std::uint8_t note_of(const SynOption&) const { return 1; }
  /// The memory that the peer of that link writes; empty: this process does not know the link.
  [[nodiscard]] virtual std::span<const std::byte> memory(std::uint32_t link) = 0;
  /// Whether the link of the connection's lane can read the send ring where it lies.
  [[nodiscard]] virtual bool reads_ring(const tcp::Tcb&, const Framed&) { return true; }
  /// Called when the program has written or read, or something has come for the connection. This call makes or answers
  /// an offer (Lane::offer, accept, decline), and uses an open lane (FramedTcp::cut) or leaves it (Lane::leave). It
  /// fails a link that is suspect. It takes a detached lane out of its LinkEnd's table, and enqueues an open lane
  /// there.
  virtual void on_change(Context& ctx, tcp::Tcb& tcb, Framed& framed) = 0;
  /// Takes a LINK_* record; its body is valid during the call.
  virtual void on_link_record(Context&, tcp::Tcb&, Framed&, const Record&, std::span<const std::byte>) {}
  /// Whether a LINK_* record is to be sent on this connection. next_link_record() returns it and writes its body into
  /// `body` (kMaxLinkBody).
  [[nodiscard]] virtual bool has_link_record(const tcp::Tcb&, const Framed&) { return false; }
  virtual Record next_link_record(tcp::Tcb&, Framed&, std::span<std::byte>) { return {}; }
  /// The connection goes. The implementation copies what the link still needs of the lane (a RESET to send, an answer
  /// to wait for). True: posted writes may still read from the send ring, so its block stays until tcp::unpin_ring().
  virtual bool on_gone(Context& ctx, tcp::Tcb& tcb, Framed& framed) = 0;
};

struct FramedConfig {
  HandshakeConfig handshake;
  std::uint32_t tcp_window = 256U << 10;         // LaneConfig's
  Duration fin_wait = std::chrono::seconds(60);  // how long a closed end waits for the peer's end
};

/// The state of one connection.
struct Framed {
  enum class Mode : std::uint8_t { kUndecided, kFramed, kRaw };

  explicit Framed(const LaneConfig& config) : lane(config) {}
  /// True if lanes may be offered and LINK_* records sent.
  [[nodiscard]] bool both_framed() const {
    return sending == Mode::kFramed && receiving == Mode::kFramed && !revert_owed;
  }

  /// True if at least one direction uses a lane.
  [[nodiscard]] bool on_lane() const { return lane.tx_path() == TxPath::kLane || lane.rx_path() == RxPath::kLane; }

  /// A number that changes with every byte sent or taken by the program.
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
  std::uint64_t raw_next = 0;    // kRaw: the next byte of the send ring that TCP's map does not have
  std::uint64_t heard = 0;       // bytes for which the program had an event
  std::uint64_t raw_read = 0;    // kRaw: bytes read that no record carried
  Instant quiet = kNever;        // when the peer is told of small progress
  Instant patience = kNever;     // when a closed connection stops waiting for its peer
  Instant corked = kNever;       // when bytes that a cork holds leave anyway
  Instant waits_since = kNever;  // since when a writer waits for room while nothing is placed …
  Mode sending = Mode::kUndecided, receiving = Mode::kUndecided;
  std::uint8_t magic_left = 0;  // bytes of the peer's magic that are not skipped yet
  // Events so far
  bool revert_owed = false;
  bool shut = false;          // the program has ended its direction
  bool shut_receive = false;  // the program reads no more
  bool refused = false;       // bytes came after both; they are not to be read, and the connection was reset
  bool ended_first = false;
  bool closed = false;  // the socket is closed
  bool tcp_end_seen = false;
  bool pinned = false;            // the send ring is pinned for the lane's writes
  bool wants_room = false;        // somebody waits for room in the send buffer
  bool dry = false;               // a record found no memory; it is tried again soon
  std::uint8_t small_writes = 0;  // small writes in a row, with no read between
  bool wrote_much = false;        // the last write was at least as large as what is gathered
  std::uint32_t written = 0;      // low half of Lane::end() when the program last read
  std::uint32_t waits_at = 0;     // … after this place in the send ring (low half), on whichever path
  // For Links
  std::uint16_t place = kNoLane;  // the lane's number on …
  std::uint32_t link = 0;         // … this link; 0: on no link
  std::uint32_t tried = 0;        // the last link on which a lane was looked for; the next look comes …
  std::uint32_t tried_round = 0;  // … after that round of the link
  std::uint32_t tried_at = 0;     // and once activity() has changed
};

static_assert(std::is_trivially_destructible_v<Framed>, "it goes with its block");
static_assert(sizeof(tcp::Overlay) + sizeof(Framed) <= 1024, "what a framed connection costs beside its Tcb");

class FramedTcp {
 public:
  /// `links` must outlive this object.
  FramedTcp(tcp::Engine& engine, const FramedConfig& config, Links& links);
  FramedTcp(const FramedTcp&) = delete;
  FramedTcp& operator=(const FramedTcp&) = delete;

  /// The hooks for Context::hooks; hooks_.self is set.
  [[nodiscard]] const Hooks& hooks() const { return hooks_; }
  [[nodiscard]] static bool has(const tcp::Tcb& tcb) { return tcb.overlay != nullptr; }
  /// True if both ends are framed and ours may still send records: TCP's FIN was not sent.
  [[nodiscard]] static bool may_speak(const tcp::Tcb& tcb);
  [[nodiscard]] static Framed& of(tcp::Tcb& tcb) { return *reinterpret_cast<Framed*>(tcb.overlay->state()); }
  [[nodiscard]] static const Framed& of(const tcp::Tcb& tcb) {
    return *reinterpret_cast<const Framed*>(tcb.overlay->state());
  }

  // --- Sending: see tcp::Engine
  [[nodiscard]] std::size_t send_room(tcp::Tcb& tcb);
  /// Asks for an event once a third of the send buffer is free (sk_stream_is_writeable). True: it is free already.
  bool want_room(Context& ctx, tcp::Tcb& tcb);
  Result<tcp::Room> reserve(Context& ctx, tcp::Tcb& tcb, std::size_t want);
  /// `urgent`: the last byte is urgent (MSG_OOB).
  void commit(Context& ctx, tcp::Tcb& tcb, std::size_t bytes, bool more, bool urgent = false);
  void set_options(Context& ctx, tcp::Tcb& tcb, const tcp::Options& options);
  void push(Context& ctx, tcp::Tcb& tcb);
  [[nodiscard]] std::size_t unacknowledged(Context& ctx, tcp::Tcb& tcb);
  /// For PeerLinks, on a steady connection. may_write_at_once(): a write of so many bytes needs no check for room, and
  /// is not one of the small writes that are gathered. note_write(): such a write was committed to tcp::Engine.
  [[nodiscard]] bool may_write_at_once(const tcp::Tcb& tcb, std::size_t bytes) const;
  static void note_write(tcp::Tcb& tcb, std::size_t bytes);
  /// The least size of the send ring once it is pinned for the lane, if there is memory: as much as the peer's ring.
  [[nodiscard]] std::size_t ring_bytes(const tcp::Tcb& tcb, const Framed& framed) const;

  // --- Receiving
  [[nodiscard]] std::size_t readable(const tcp::Tcb& tcb) const;
  /// True if no more can come than is readable before the program reads.
  [[nodiscard]] static bool is_full(const tcp::Tcb& tcb) {
    const Framed& framed = of(tcb);
    return framed.receiving == Framed::Mode::kFramed && framed.lane.is_full();
  }
  std::size_t peek(const tcp::Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes = SIZE_MAX) const;
  void consume(Context& ctx, tcp::Tcb& tcb, std::size_t bytes);
  [[nodiscard]] bool at_eof(const tcp::Tcb& tcb) const;
  /// True if the peer will send no more (poll's RDHUP): what tcp::Engine::state() tells of a plain connection.
  [[nodiscard]] bool peer_has_ended(const tcp::Tcb& tcb) const;
  /// True if our direction is shut, and the peer has everything (SO_LINGER).
  [[nodiscard]] bool delivered(const tcp::Tcb& tcb) const;
  /// How many bytes can be read up to and including the last urgent byte (SIOCATMARK); 0: no urgent byte is ahead.
  [[nodiscard]] std::uint64_t before_urgent_mark(const tcp::Tcb& tcb) const;

  /// The state that TCP would have without records: it follows from our end and the peer's, on whichever path they
  /// came.
  [[nodiscard]] tcp::State state(const tcp::Tcb& tcb) const;

  // --- Ending
  void shutdown_send(Context& ctx, tcp::Tcb& tcb);
  void shutdown_receive(Context& ctx, tcp::Tcb& tcb);
  void close(Context& ctx, tcp::Tcb& tcb);
  void abort(Context& ctx, tcp::Tcb& tcb);

  // --- The links' side
  /// From now on the lane carries what the program writes. Lane::can_cut() must hold. May be called from on_change() or
  /// outside it.
  void cut(tcp::Tcb& tcb);
  /// Gives the connection its turn after the link has failed or is final.
  void run(Context& ctx, tcp::Tcb& tcb) { tcp::run_overlay(engine_, ctx, tcb); }
  /// Gives the connection its turn after LinkEnd has taken messages for its lane, or written some.
  void run_lane(Context& ctx, tcp::Tcb& tcb);
  /// True if both directions are on the lane and neither has anything to send over TCP: a call or a message then
  /// changes nothing but the lane.
  [[nodiscard]] static bool is_steady(const tcp::Tcb& tcb, const Framed& framed);
  /// The send buffer, for LinkEnd's table.
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

  // --- The steps of a turn
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
  /// Makes room for a record that adds `own` bytes. False: there is no memory now; the connection has another turn
  /// soon.
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
