// Framed: the program's calls.
// Tests: tests/fastpath/framed_test.cc, tests/fastpath/peer_links_calls_test.cc.
#include <algorithm>
#include <utility>

#include "fastpath/framed/framed.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/state.h"

namespace bypass::fastpath {

using tcp::Tcb;
using Mode = Framed::Mode;

namespace {

/// Writes of fewer bytes are gathered (Lane::Gather::kLittle), once kStream of them have come in a row and so are no
/// dialogue.
constexpr std::size_t kSmallWrite = 1024;
constexpr std::uint8_t kStream = 8;
/// A program that has written so much without reading sends no short answer that somebody waits for
/// (Lane::Gather::kAhead).
constexpr std::uint32_t kStreamBytes = 512U << 10;

/// The number of small writes in a row, including this one; 0: this write is not small.
std::uint8_t small_writes_with(const Tcb& tcb, const Framed& framed, std::size_t bytes) {
  const bool small = bytes < kSmallWrite && !tcb.options.no_delay;
  return small ? static_cast<std::uint8_t>(std::min(framed.small_writes + 1, int{kStream})) : std::uint8_t{0};
}

/// How the write that was just added to the lane is gathered. It is not gathered if the program asked for no delay, or
/// if it is the rest of a large write. Bytes that are held count as unsent, and the program may have limited those.
Lane::Gather gather_of(const Tcb& tcb, Framed& framed, std::size_t bytes) {
  if (framed.small_writes == kStream) return Lane::Gather::kLittle;
  const bool after_much = std::exchange(framed.wrote_much, bytes >= Lane::kGatheredAhead);
  if (static_cast<std::uint32_t>(framed.lane.end()) - framed.written < kStreamBytes) [[likely]]
    return Lane::Gather::kNothing;
  const bool wanted = tcb.options.no_delay || tcb.options.most_unsent() <= Lane::kGatheredAhead;
  return wanted || after_much || framed.wrote_much ? Lane::Gather::kNothing : Lane::Gather::kAhead;
}

}  // namespace

// --- Sending

std::size_t FramedTcp::send_room(Tcb& tcb) {
  return of(tcb).shut ? 0 : engine_.writable_room(tcb);
}

bool FramedTcp::want_room(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  release(ctx, tcb, framed);
  ask_for_room(tcb, framed);
  if (framed.wants_room) wait_for_room(ctx, tcb, framed);
  return !framed.wants_room;
}

Result<tcp::Room> FramedTcp::reserve(Context& ctx, Tcb& tcb, std::size_t want) {
  Framed& framed = of(tcb);
  if (framed.shut) return tcb.error != Error::kNone ? tcb.error : Error::kBrokenPipe;
  release(ctx, tcb, framed);
  pin(tcb, framed);
  auto room = engine_.reserve(tcb, want);
  if (room.ok() || room.error() != Error::kWouldBlock) return room;
  framed.wants_room = true;
  framed.lane.uncork();  // bytes that a writer waits for must not be held
  if (framed.lane.tx_path() != TxPath::kTcp) framed.lane.wait_for_buffer();
  wait_for_room(ctx, tcb, framed);
  return room;
}

void FramedTcp::wait_for_room(Context& ctx, Tcb& tcb, Framed& framed) {
  const bool by_tcp = framed.lane.tx_path() == TxPath::kTcp;
  if (!by_tcp) links_.on_change(ctx, tcb, framed);
  if (by_tcp && tcb.options.user_timeout_ms == 0) return;
  // A bulk writer comes here often: the timer of an earlier wait will handle this wait, too.
  if (tcb.overlay->deadline == kNever) arm(ctx, tcb, framed);
}

void FramedTcp::commit(Context& ctx, Tcb& tcb, std::size_t bytes, bool more, bool urgent) {
  const bool alive = tcp::sends(tcb.state) && !tcb.has(tcp::kFinQueued) && !of(tcb).shut;
  if (!alive) return engine_.commit(ctx, tcb, 0, more);
  const std::uint64_t before = tcb.ring.end();
  engine_.commit(ctx, tcb, bytes, more);
  Framed& framed = of(tcb);
  Lane& lane = framed.lane;
  // The room may have been reserved before the lane was cut.
  pin(tcb, framed);
  lane.write(tcb.ring.end() - before);
  framed.small_writes = small_writes_with(tcb, framed, bytes);
  const bool corked = more || tcb.options.cork;
  if (lane.is_corked() && !corked) lane.uncork();
  lane.gather(gather_of(tcb, framed, bytes));
  if (corked) lane.cork(tcb.mss);
  if (urgent) lane.mark_urgent();
  if (urgent || !is_steady(tcb, framed)) return run(ctx, tcb);
  links_.on_change(ctx, tcb, framed);
  if (corked) arm(ctx, tcb, framed);
}

void FramedTcp::set_options(Context& ctx, Tcb& tcb, const tcp::Options& options) {
  const bool uncorks = tcb.options.cork && !options.cork;
  const bool pushes = !tcb.options.no_delay && options.no_delay;  // this also sends what a cork holds
  engine_.set_options(ctx, tcb, options);
  if (uncorks || pushes) push(ctx, tcb);
}

void FramedTcp::push(Context& ctx, Tcb& tcb) {
  engine_.push(ctx, tcb);
  Lane& lane = of(tcb).lane;
  if (!lane.is_corked()) return;
  lane.uncork();
  run(ctx, tcb);
}

bool FramedTcp::may_write_at_once(const Tcb& tcb, std::size_t bytes) const {
  const Framed& framed = of(tcb);
  if (!framed.pinned || tcb.options.cork || engine_.send_room(tcb) < bytes) return false;
  return small_writes_with(tcb, framed, bytes) != kStream;
}

void FramedTcp::note_write(Tcb& tcb, std::size_t bytes) {
  Framed& framed = of(tcb);
  framed.lane.write(bytes);
  framed.small_writes = small_writes_with(tcb, framed, bytes);
  framed.lane.gather(gather_of(tcb, framed, bytes));
}

std::size_t FramedTcp::unacknowledged(Context& ctx, Tcb& tcb) {
  release(ctx, tcb, of(tcb));
  const Lane& lane = of(tcb).lane;
  if (tcb.state == tcp::State::kClosed) return static_cast<std::size_t>(lane.end() - std::min(lane.end(), lane.una()));
  return engine_.unacknowledged(tcb);
}

std::size_t FramedTcp::ring_bytes(const Tcb& tcb, const Framed& framed) const {
  const std::size_t ring = std::size_t{1} << framed.lane.remote().ring_log2;
  return std::min<std::size_t>(ring, tcp::most_send_buffer(engine_.impl(), tcb));
}

/// Pins the send ring for a lane's writes, as it cannot grow while they refer to it. If the link cannot read the ring,
/// or the ring got little memory, the bytes go over TCP.
void FramedTcp::pin(Tcb& tcb, Framed& framed) {
  if (framed.pinned || framed.lane.tx_path() != TxPath::kLane) return;
  tcb.ring.widen(engine_.impl().memory, ring_bytes(tcb, framed));
  if (tcb.ring.block() == nullptr) return;  // without memory: commit() pins the ring that reserve() gets
  tcp::pin_ring(tcb);
  tcb.overlay->roomy = false;
  framed.pinned = true;
  // and it would stay small for as long as it is pinned
  const bool tiny = tcb.ring.capacity() < tcp::SendRing::kFirstBlock;
  if (tiny || !links_.reads_ring(tcb, framed)) framed.lane.leave();
}

// A connection that has sent nothing yet needs no send ring: the first byte pins it.
void FramedTcp::cut(Tcb& tcb) {
  Framed& framed = of(tcb);
  framed.lane.cut();
  if (framed.lane.next_offset() != framed.lane.end()) pin(tcb, framed);
}

ByteSource FramedTcp::source(const Tcb& tcb) {
  return {static_cast<const std::byte*>(tcb.ring.block()), tcb.ring.origin(), tcb.ring.capacity()};
}

// --- Receiving

std::size_t FramedTcp::readable(const Tcb& tcb) const {
  const Framed& framed = of(tcb);
  if (framed.receiving == Mode::kUndecided) return 0;
  const std::uint64_t all = framed.lane.parts().bytes() + (framed.receiving == Mode::kRaw ? tcb.rx_bytes : 0);
  if (!framed.refused) [[likely]]
    return all;
  return std::min(all, framed.heard - framed.lane.consumed() - framed.raw_read);
}

std::size_t FramedTcp::peek(const Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes) const {
  const Framed& framed = of(tcb);
  if (framed.receiving == Mode::kUndecided) return 0;
  Lane::Parts parts = framed.lane.parts();
  if (framed.receiving == Mode::kRaw) parts.tcp += tcb.rx_bytes;  // then there is no ring
  std::uint64_t left = std::min<std::uint64_t>(bytes, framed.refused ? readable(tcb) : parts.bytes());
  std::size_t n = tcp::peek_from(tcb, 0, out, static_cast<std::size_t>(std::min(left, parts.tcp)));
  left -= std::min(left, parts.tcp);
  const auto memory = parts.ring != 0 ? links_.memory(framed.lane.link()) : std::span<const std::byte>{};
  const RingReader& ring = framed.lane.ring();
  if (parts.ring != 0 && memory.size() < framed.lane.local().ring + ring.capacity()) return n;
  for (std::uint64_t at = parts.ring_at, end = at + std::min(left, parts.ring); at != end && n < out.size();) {
    const std::uint64_t run = std::min(end - at, ring.before_wrap(at));
    out[n++] = memory.subspan(framed.lane.local().ring + ring.position(at), run);
    at += run;
    left -= run;
  }
  const auto tcp_bytes = static_cast<std::size_t>(std::min(left, parts.tcp_behind));
  return n + (tcp_bytes != 0 ? tcp::peek_from(tcb, parts.tcp, out.subspan(n), tcp_bytes) : 0);
}

void FramedTcp::consume(Context& ctx, Tcb& tcb, std::size_t bytes) {
  Framed& framed = of(tcb);
  bytes = std::min(bytes, readable(tcb));
  while (bytes != 0) {
    const Lane::Readable next = framed.lane.readable();
    const bool raw = next.from == Lane::From::kNothing;
    const auto n = static_cast<std::size_t>(raw ? bytes : std::min<std::uint64_t>(bytes, next.bytes));
    if (next.from != Lane::From::kRing) engine_.consume(ctx, tcb, n);
    raw ? static_cast<void>(framed.raw_read += n) : framed.lane.consume(n);
    bytes -= n;
  }
  framed.note_read();
  if (framed.receiving != Mode::kFramed) return;
  // There is little for the peer to learn, and the timer that will tell it runs.
  const bool quiet =
      framed.quiet != kNever && is_steady(tcb, framed) && !framed.lane.has_writes(links_.memory(framed.lane.link()));
  if (!quiet) run(ctx, tcb);
}

bool FramedTcp::at_eof(const Tcb& tcb) const {
  const Framed& framed = of(tcb);
  if (readable(tcb) != 0) return false;
  if (framed.receiving != Mode::kUndecided && peer_has_ended(tcb) && !framed.refused) return true;
  if (tcb.error != Error::kNone) return false;
  return framed.shut_receive || tcb.state == tcp::State::kClosed;
}

tcp::State FramedTcp::state(const Tcb& tcb) const {
  using tcp::State;
  if (!tcp::synchronized(tcb.state) || tcb.state == State::kTimeWait) return tcb.state;
  const Framed& framed = of(tcb);
  const Lane& lane = framed.lane;
  const bool ended = peer_has_ended(tcb);
  if (!framed.shut) return ended ? State::kCloseWait : State::kEstablished;
  const bool acked = framed.sending == Mode::kFramed
                         ? lane.end_acked() || (lane.end_sent_over_tcp() && tcb.overlay->map.empty())
                         : tcb.has(tcp::kFinSent) && tcb.snd_una == tcb.send_end();
  if (!ended) return acked ? State::kFinWait2 : State::kFinWait1;
  if (!acked) return framed.ended_first ? State::kClosing : State::kLastAck;
  return framed.ended_first ? State::kTimeWait : State::kClosed;
}

bool FramedTcp::delivered(const Tcb& tcb) const {
  const Framed& framed = of(tcb);
  if (framed.sending != Mode::kFramed || tcb.has(tcp::kFinQueued))
    return tcb.has(tcp::kFinSent) && tcb.snd_una == tcb.send_end();
  const Lane& lane = framed.lane;
  return framed.shut && lane.una() == lane.end() && !lane.has_control() && tcb.overlay->map.empty();
}

bool FramedTcp::peer_has_ended(const Tcb& tcb) const {
  const Framed& framed = of(tcb);
  if (framed.lane.peer_ended()) return true;
  return framed.receiving != Mode::kFramed && tcp::peer_has_ended(tcb);
}

std::uint64_t FramedTcp::before_urgent_mark(const Tcb& tcb) const {
  const Lane& lane = of(tcb).lane;
  return lane.urgent_mark() > lane.consumed() ? lane.urgent_mark() - lane.consumed() : 0;
}

// --- Ending

void FramedTcp::shutdown_send(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  if (framed.shut) return;
  framed.shut = tcb.overlay->shut = true;
  framed.ended_first = !peer_has_ended(tcb);
  framed.lane.shutdown_send();
  run(ctx, tcb);
}

void FramedTcp::shutdown_receive(Context&, Tcb& tcb) {
  of(tcb).shut_receive = true;
  tcp::post_events(engine_, tcb, kEventEof | kEventReadable);
}

void FramedTcp::close(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  if (tcb.state == tcp::State::kClosed || tcb.state == tcp::State::kTimeWait) return engine_.close(ctx, tcb);
  if (readable(tcb) != 0) return abort(ctx, tcb);  // RFC 2525 §2.17
  tcp::orphan(engine_, tcb);
  framed.closed = true;
  if (framed.shut) {
    run(ctx, tcb);
  } else {
    shutdown_send(ctx, tcb);
  }
}

void FramedTcp::abort(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  framed.lane.abort();
  links_.on_change(ctx, tcb, framed);
  engine_.abort(ctx, tcb);
}

}  // namespace bypass::fastpath
