// Framed: a connection's turn: what it receives, decides and sends.
#include "fastpath/framed/framed.h"

#include <algorithm>
#include <array>
#include <utility>

#include "stack/tcp/input/input.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::fastpath {

using tcp::Tcb;
using Mode = Framed::Mode;

namespace {

constexpr Duration kQuiet = std::chrono::milliseconds(10);
/// How long a writer waits on a lane whose peer places nothing.
constexpr Duration kStuck = std::chrono::milliseconds(50);
/// The pause before a record that found no memory is tried again.
constexpr Duration kDryRetry = std::chrono::milliseconds(2);

FramedTcp& self_of(void* self) {
  return *static_cast<FramedTcp*>(self);
}

/// How many bytes have come for the program, read or not.
std::uint64_t arrived(const FramedTcp& tcp, const Tcb& tcb) {
  const Framed& framed = FramedTcp::of(tcb);
  return framed.lane.consumed() + framed.raw_read + tcp.readable(tcb);
}

}  // namespace

FramedTcp::FramedTcp(tcp::Engine& engine, const FramedConfig& config, Links& links)
    : engine_(engine), config_(config), links_(links) {
  hooks_.self = this;
  hooks_.add_syn_options = [](void* self, Tcb& tcb, bool syn_ack, unsigned attempt, std::span<std::byte> room) {
    return self_of(self).add_option(tcb, syn_ack, attempt, room);
  };
  hooks_.see_syn_option = [](void* self, Context&, Tcb& tcb, bool syn_ack, std::uint8_t kind,
                             std::span<const std::byte> body) {
    if (kind != kOptionKind) return;
    if (const auto option = parse_syn_option(body)) self_of(self).see_option(tcb, syn_ack, *option);
  };
  hooks_.plain = [](void* self, const Tcb& tcb) { self_of(self).links_.on_plain(tcb); };
  hooks_.established = [](void* self, Context& ctx, Tcb& tcb, bool bare) { self_of(self).established(ctx, tcb, bare); };
  hooks_.progress = [](void* self, Context& ctx, Tcb& tcb) { self_of(self).progress(ctx, tcb); };
  hooks_.refill = [](void* self, Context& ctx, Tcb& tcb) { return self_of(self).refill(ctx, tcb); };
  hooks_.heard = [](void* self, const Tcb& tcb) { return arrived(self_of(self), tcb) + tcb.ring.begin(); };
  hooks_.gone = [](void* self, Context& ctx, Tcb& tcb) { self_of(self).gone(ctx, tcb); };
}

// --- The turn

void FramedTcp::progress(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  if (!tcp::synchronized(tcb.state)) {
    if (tcb.state != tcp::State::kClosed) return;
    if (framed.receiving == Mode::kFramed && !framed.lane.aborted()) receive(ctx, tcb, framed);
    return over(ctx, tcb, framed);
  }
  if (!decide(ctx, tcb, framed)) return;
  if (framed.receiving == Mode::kFramed) receive(ctx, tcb, framed);
  take_tcp_end(tcb, framed);
  release(ctx, tcb, framed);
  tell_peer(ctx, framed);
  look_at_cork(ctx, framed);
  look_at_writer(ctx, tcb, framed);
  if (ctx.now >= leaves_at(framed)) framed.lane.leave();
  if (!framed.lane.aborted()) links_.on_change(ctx, tcb, framed);
  if (ctx.now >= times_out_at(tcb, framed)) {
    tcp::fail(engine_, ctx, tcb, framed.closed ? Error::kNone : Error::kTimedOut);
    return over(ctx, tcb, framed);
  }
  if (framed.lane.aborted() || given_up(ctx, tcb, framed)) {
    tcp::fail(engine_, ctx, tcb, framed.closed ? Error::kNone : Error::kReset);
    return over(ctx, tcb, framed);
  }
  if (tcp::sends(tcb.state) && !tcb.has(tcp::kFinQueued)) {  // no record follows FIN
    if (framed.sending == Mode::kFramed) send_control(tcb, framed);
    if (framed.sending == Mode::kRaw) send_raw(tcb, framed);
    send_end(ctx, tcb, framed);
    if (tcb.unsent() != 0 || framed.lane.data_ready() != 0) tcb.set(tcp::kTryOutput);  // which calls refill()
  }
  tell_program(ctx, tcb, framed);
  arm(ctx, tcb, framed);
}

bool FramedTcp::may_speak(const Tcb& tcb) {
  return has(tcb) && of(tcb).both_framed() && tcp::sends(tcb.state) && !tcb.has(tcp::kFinQueued);
}

/// TCP is over. If both directions ended in order, everything has arrived, and messages that are still owed may be sent
/// on the link. Otherwise the lane is aborted, so that the link's peer is told.
void FramedTcp::end_lane(const Tcb& tcb, Framed& framed) {
  const bool both = tcb.has(tcp::kFinReceived) && tcb.has(tcp::kFinSent) && tcb.snd_una == tcb.send_end();
  if (!both || tcb.error != Error::kNone) return framed.lane.abort();
  if (framed.both_framed()) framed.lane.on_tcp_end();
  framed.lane.on_tcp_over();
}

void FramedTcp::over(Context& ctx, Tcb& tcb, Framed& framed) {
  const bool was_reset = tcb.error == Error::kReset || tcb.error == Error::kBrokenPipe;
  if (was_reset && peer_has_ended(tcb) && !framed.refused) {
    // As in TCP's CLOSE-WAIT: the peer had finished, and its end may have come by a message for which no event was
    // posted yet. If both directions are over, as in TIME-WAIT, a reset of the connection beneath means nothing: a
    // process that exits causes one.
    tcb.error = framed.shut && delivered(tcb) ? Error::kNone : Error::kBrokenPipe;
  }
  end_lane(tcb, framed);
  links_.on_change(ctx, tcb, framed);
}

void FramedTcp::gone(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  // Takes the records that came along with TCP's FIN: other connections may wait for what these say about a link.
  if (framed.receiving == Mode::kFramed && !framed.lane.aborted()) receive(ctx, tcb, framed);
  end_lane(tcb, framed);
  // The program will not read what is left.
  Lane& lane = framed.lane;
  for (Lane::Readable rest = lane.readable(); rest.from != Lane::From::kNothing; rest = lane.readable())
    lane.consume(rest.bytes);
  const bool still_read = links_.on_gone(ctx, tcb, framed);
  if (framed.pinned && !still_read) tcb.ring.unpin(engine_.impl().memory);
}

void FramedTcp::arm(Context& ctx, Tcb& tcb, Framed& framed) {
  const auto reader = [](auto& handshake) { return handshake.reader().deadline(); };
  look_at_cork(ctx, framed);
  look_at_writer(ctx, tcb, framed);
  Instant at = std::min({framed.quiet, framed.patience, framed.corked, leaves_at(framed), times_out_at(tcb, framed)});
  if (framed.receiving == Mode::kUndecided) at = std::min(at, std::visit(reader, framed.handshake));
  // If nothing is under way, no ACK will bring the next turn.
  if (std::exchange(framed.dry, false)) at = std::min(at, ctx.now + kDryRetry);
  tcp::set_deadline(engine_, ctx, tcb, at);
}

/// A cork holds bytes for at most tcp::kCorkLimit, as with Linux's timer. Bytes that the lane has no room for are not
/// held by the cork.
void FramedTcp::look_at_cork(const Context& ctx, Framed& framed) {
  Lane& lane = framed.lane;
  if (!lane.is_corked()) [[likely]] {
    framed.corked = kNever;
    return;
  }
  const bool waits = lane.tx_path() == TxPath::kLane && lane.next_offset() != lane.end();
  if (!waits) {
    framed.corked = kNever;
  } else if (framed.corked == kNever || (ctx.now >= framed.corked && !lane.is_gathering())) {
    framed.corked = ctx.now + tcp::kCorkLimit;
  } else if (ctx.now >= framed.corked) {
    lane.uncork();
    framed.corked = kNever;
  }
}

void FramedTcp::look_at_writer(const Context& ctx, const Tcb& tcb, Framed& framed) {
  const auto una = static_cast<std::uint32_t>(tcb.ring.begin());
  if (!framed.wants_room) {
    framed.waits_since = kNever;
  } else if (framed.waits_since == kNever || framed.waits_at != una) {
    framed.waits_since = ctx.now;
    framed.waits_at = una;
  }
}

/// When a writer leaves the lane because its peer places nothing. A lane holds what its ring and the pinned send ring
/// hold: perhaps some KiB, less than TCP. Two ends that write everything before they read would wait for each other for
/// ever.
Instant FramedTcp::leaves_at(const Framed& framed) {
  const bool waits = framed.waits_since != kNever && framed.lane.tx_path() == TxPath::kLane && framed.lane.may_leave();
  return waits ? framed.waits_since + kStuck : kNever;
}

/// When TCP_USER_TIMEOUT ends the connection of a writer whose peer lives and does not read. TCP beneath has nothing
/// that waits for an answer, so its own timeout does not run.
Instant FramedTcp::times_out_at(const Tcb& tcb, const Framed& framed) {
  const bool waits = framed.waits_since != kNever && tcb.options.user_timeout_ms != 0;
  return waits ? framed.waits_since + std::chrono::milliseconds(tcb.options.user_timeout_ms) : kNever;
}

// --- Receiving

struct FramedTcp::Sifting {
  FramedTcp& self;
  Context& ctx;
  Tcb& tcb;
  Framed& framed;
  std::uint32_t data = 0;  // bytes of the DATA record whose header came last

  tcp::Sifted next(std::span<const std::byte> bytes);
  tcp::Sifted on_record(const Record& record, std::size_t taken);
};

tcp::Sifted FramedTcp::Sifting::next(std::span<const std::byte> bytes) {
  using As = tcp::Sifted::As;
  if (framed.receiving == Mode::kRaw) return {As::kRest};
  if (framed.magic_left != 0) {
    const auto n = static_cast<std::uint8_t>(std::min<std::size_t>(framed.magic_left, bytes.size()));
    framed.magic_left = static_cast<std::uint8_t>(framed.magic_left - n);
    return {As::kRecord, n};
  }
  if (data != 0) return {As::kProgram, std::exchange(data, 0)};
  const Decoder::Step step = framed.decoder.next(bytes);
  const auto taken = static_cast<std::uint32_t>(step.taken);
  switch (step.event) {
    case Decoder::Event::kMore:
      return {As::kRecord, taken};
    case Decoder::Event::kRecord:
      return on_record(step.record, step.taken);
    case Decoder::Event::kData:
      framed.lane.on_record({.type = RecordType::kData, .length = step.data});
      if (framed.lane.aborted()) return {As::kStop};
      if (taken == step.data) return {As::kProgram, taken};
      data = step.data;
      return {As::kRecord, taken - step.data};
    default:
      framed.lane.abort(Reason::kBadRecord);
      return {As::kStop};
  }
}

tcp::Sifted FramedTcp::Sifting::on_record(const Record& record, std::size_t taken) {
  framed.lane.on_record(record);
  if (framed.lane.aborted()) return {tcp::Sifted::As::kStop};
  if (record.type == RecordType::kRevert) {
    framed.receiving = Mode::kRaw;
    framed.revert_owed = framed.sending == Mode::kFramed;
  } else if (record.type >= RecordType::kLinkHello) {
    self.links_.on_link_record(ctx, tcb, framed, record, framed.decoder.link_body());
  } else if (record.type != RecordType::kCredit) {
    self.links_.on_change(ctx, tcb, framed);
  }
  return {tcp::Sifted::As::kRecord, static_cast<std::uint32_t>(taken)};
}

void FramedTcp::receive(Context& ctx, Tcb& tcb, Framed& framed) {
  Sifting sifting{*this, ctx, tcb, framed};
  tcp::sift(engine_, ctx, tcb, {&sifting, [](void* self, std::span<const std::byte> bytes) {
                                  return static_cast<Sifting*>(self)->next(bytes);
                                }});
}

void FramedTcp::take_tcp_end(Tcb& tcb, Framed& framed) {
  if (framed.tcp_end_seen || !tcp::peer_has_ended(tcb)) return;
  framed.tcp_end_seen = true;
  if (framed.receiving != Mode::kFramed) return;
  if (framed.decoder.mid_record()) return framed.lane.abort(Reason::kBadRecord);
  if (framed.sending == Mode::kFramed) {
    framed.lane.on_tcp_end();
  } else if (!framed.lane.peer_ended()) {
    framed.lane.abort(Reason::kBadState);
  }
}

void FramedTcp::tell_program(Context& ctx, Tcb& tcb, Framed& framed) {
  unsigned events = 0;
  const std::uint64_t all = arrived(*this, tcb);
  if (all > framed.heard) {
    framed.heard = all;
    events |= kEventReadable;
  }
  if (!tcb.overlay->peer_ended && framed.receiving != Mode::kUndecided && peer_has_ended(tcb)) {
    tcb.overlay->peer_ended = true;
    events |= kEventEof | kEventReadable;
  }
  if (events == 0) return;
  tcp::end_deferral(engine_, ctx, tcb);
  tcp::post_events(engine_, tcb, static_cast<std::uint16_t>(events));
}

/// Credits that are too few to be sent at once are sent when nothing else has happened for a while.
void FramedTcp::tell_peer(Context& ctx, Framed& framed) {
  if (!framed.lane.has_news()) {
    framed.quiet = kNever;
  } else if (framed.quiet == kNever) {
    framed.quiet = ctx.now + kQuiet;
  } else if (ctx.now >= framed.quiet) {
    framed.lane.tell();
    framed.quiet = kNever;
  }
}

// --- Sending

bool FramedTcp::prepare(Tcb& tcb, Framed& framed, std::uint32_t own) {
  if (tcp::prepare_record(engine_, tcb, own)) [[likely]]
    return true;
  framed.dry = true;
  return false;
}

bool FramedTcp::send_record(Tcb& tcb, Framed& framed, std::uint32_t most_data) {
  Record record;
  if (!framed.lane.next_record(record, most_data)) return false;
  std::array<std::byte, kMaxControl> room;
  const auto bytes = std::span(room).first(encode(record, room));
  const bool data = record.type == RecordType::kData;
  tcp::append_record(tcb, bytes, record.value, data ? record.length : 0, !data);
  return true;
}

/// Sends records that must not wait until DATA before them has left.
void FramedTcp::send_control(Tcb& tcb, Framed& framed) {
  Lane& lane = framed.lane;
  while (lane.has_control() && prepare(tcb, framed, kMaxControl) && send_record(tcb, framed, 0)) {
  }
  if (framed.both_framed()) send_links_records(tcb, framed);
  const bool client = std::holds_alternative<ClientHandshake>(framed.handshake);
  if (client && framed.receiving == Mode::kUndecided && lane.window_closed()) framed.revert_owed = true;
  if (framed.revert_owed) send_revert(tcb, framed);
}

void FramedTcp::send_links_records(Tcb& tcb, Framed& framed) {
  std::array<std::byte, kMaxLinkBody> body;
  std::array<std::byte, kMaxControl> room;
  while (links_.has_link_record(tcb, framed) && prepare(tcb, framed, kMaxControl)) {
    const Record record = links_.next_link_record(tcb, framed, body);
    const std::size_t n = encode(record, room, std::span(body).first(record.length));
    tcp::append_record(tcb, std::span(room).first(n), 0, 0, true);
  }
}

void FramedTcp::send_revert(Tcb& tcb, Framed& framed) {
  if (!prepare(tcb, framed, kMaxControl)) return;
  std::array<std::byte, kMaxControl> room;
  const std::size_t n = encode({.type = RecordType::kRevert}, room);
  tcp::append_record(tcb, std::span(room).first(n), 0, 0, true);
  framed.revert_owed = false;
  framed.sending = Mode::kRaw;
  framed.raw_next = framed.lane.next_offset();
}

void FramedTcp::send_raw(Tcb& tcb, Framed& framed) {
  const std::uint64_t end = tcb.ring.end();
  if (framed.raw_next == end || !prepare(tcb, framed, 0)) return;
  tcp::append_record(tcb, {}, framed.raw_next, end - framed.raw_next, false);
  framed.raw_next = end;
}

/// Sends TCP's FIN. The end whose direction ended first begins; if both have ended at once, both send it.
void FramedTcp::send_end(Context& ctx, Tcb& tcb, Framed& framed) {
  if (!framed.shut) return;
  const bool raw = framed.sending == Mode::kRaw && framed.raw_next == tcb.ring.end();
  const bool turn = framed.ended_first || framed.tcp_end_seen || framed.receiving == Mode::kRaw;
  const bool done = framed.sending == Mode::kFramed && framed.lane.finished() && !framed.revert_owed && turn;
  if (raw || done) tcp::send_fin(engine_, ctx, tcb);
}

/// TCP could send more. Makes DATA records once everything given to TCP has left, or if they fill a segment together
/// with the rest.
bool FramedTcp::refill(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  if (framed.sending != Mode::kFramed || framed.revert_owed) return false;
  const std::uint64_t ready = framed.lane.data_ready(), unsent = tcb.unsent();
  if (ready == 0 || (unsent != 0 && unsent + ready < tcb.mss)) return false;
  if (tcp::prepare_record(engine_, tcb, kMaxControl)) return send_record(tcb, framed, kMaxData);
  tcp::set_deadline(engine_, ctx, tcb, std::min(tcb.overlay->deadline, ctx.now + kDryRetry));
  return false;
}

/// Forgets the bytes that the peer has, whichever path they took.
void FramedTcp::release(Context& ctx, Tcb& tcb, Framed& framed) {
  if (!tcp::sends(tcb.state) && tcb.state != tcp::State::kFinWait2) return;
  Lane& lane = framed.lane;
  const std::uint64_t over_tcp = tcb.overlay->map.acknowledged();
  std::uint64_t una = over_tcp;
  if (framed.sending == Mode::kFramed) {
    lane.on_tcp_acked(over_tcp);
    if (lane.tx_path() != TxPath::kTcp) lane.look(links_.memory(lane.link()));
    una = lane.una();
    tcb.overlay->taken = std::max(tcb.overlay->taken, lane.next_offset());
  }
  tcp::release_sent(engine_, ctx, tcb, una);
  if (framed.wants_room) ask_for_room(tcb, framed);
  if (!framed.pinned || !lane.source_idle()) return;
  framed.pinned = false;
  // TCP has carried little here. Its congestion window says nothing about how much two ends that write may have to
  // hold.
  tcb.overlay->roomy = framed.wants_room;
  tcp::unpin_ring(engine_, ctx, tcb);
}

/// Asks the peer to report room, as no ACK will report it.
void FramedTcp::ask_for_room(const Tcb& tcb, Framed& framed) {
  framed.wants_room = !tcp::is_writeable(engine_.writable_room(tcb), engine_.unacknowledged(tcb));
  if (framed.wants_room && framed.lane.tx_path() == TxPath::kLane) framed.lane.wait_for_buffer();
}

// --- The usual

bool FramedTcp::is_steady(const Tcb& tcb, const Framed& framed) {
  const Lane& lane = framed.lane;
  return lane.tx_path() == TxPath::kLane && lane.rx_path() == RxPath::kLane && framed.link != 0 &&
         framed.both_framed() && tcb.state == tcp::State::kEstablished && tcb.error == Error::kNone &&
         !tcb.has(tcp::kFinReceived) && !lane.has_control() && !lane.aborted() && !lane.peer_ended() && !framed.shut &&
         !framed.shut_receive && !framed.closed && lane.may_leave();
}

void FramedTcp::run_lane(Context& ctx, Tcb& tcb) {
  Framed& framed = of(tcb);
  if (!is_steady(tcb, framed)) return run(ctx, tcb);
  release(ctx, tcb, framed);
  const bool told = framed.quiet != kNever;  // then it is settled when the news will be sent
  if (!told) tell_peer(ctx, framed);
  tell_program(ctx, tcb, framed);
  if (!told) arm(ctx, tcb, framed);
}

// --- The end

/// Whether the connection is to be reset. A closed end waits for the peer's end only until its limit, and reads no
/// bytes any more. An end that is shut in both directions reads no bytes either.
bool FramedTcp::given_up(Context& ctx, Tcb& tcb, Framed& framed) {
  if (framed.closed && readable(tcb) != 0) return true;
  // As TCP in FIN-WAIT-1 and -2: what came before stays readable.
  framed.refused = framed.shut && framed.shut_receive && arrived(*this, tcb) > framed.heard;
  if (framed.refused) return true;
  const bool before = std::exchange(tcb.overlay->delivered, delivered(tcb));
  if (tcb.overlay->delivered && !before) tcp::post_events(engine_, tcb, kEventDelivered);  // a lingering close() waits
  if (!framed.closed || !tcb.overlay->delivered || tcb.has(tcp::kFinQueued)) {
    framed.patience = kNever;
  } else if (framed.patience == kNever) {
    const int wanted = tcb.options.linger2_s;  // below 0: does not wait for the peer's end
    const bool usual = wanted == 0 || (wanted < 0 && peer_has_ended(tcb));
    framed.patience = ctx.now + (usual ? config_.fin_wait : Duration(std::chrono::seconds(std::max(wanted, 0))));
  }
  return ctx.now >= framed.patience;
}

}  // namespace bypass::fastpath
