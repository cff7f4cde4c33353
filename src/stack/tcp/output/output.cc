#include "stack/tcp/output/output.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "stack/tcp/input/input.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

// Why sending stopped.
enum class Hold : std::uint8_t {
  kNone,     // it did not stop: there is something to send
  kNothing,  // all is sent
  kWindow,   // the peer's window
  kCwnd,
  kSmall,   // Nagle or cork: a partial segment waits for more bytes
  kDevice,  // no room on the device
};

struct Chunk {
  Hold hold = Hold::kNone;
  std::uint32_t length = 0;
  bool fin = false;
};

// --- New data

std::uint32_t usable_window(const Tcb& tcb) {
  const std::uint64_t edge = tcb.snd_una + tcb.snd_wnd;
  return edge > tcb.snd_nxt ? static_cast<std::uint32_t>(edge - tcb.snd_nxt) : 0;
}

// RFC 9293 §3.7.4 with Minshall's refinement: only an unacknowledged partial segment holds back another.
bool hold_small(const Tcb& tcb) {
  if (tcb.has(kForceOutput)) return false;
  if (tcb.has(kHoldMore) || tcb.options.cork) return true;
  if (tcb.options.no_delay || !after(tcb.small_end, tcb.seq_of(tcb.snd_una))) return false;
  return !after(tcb.small_end, tcb.seq_of(tcb.snd_nxt));  // otherwise 2^31 bytes have been sent since
}

std::uint32_t whole_segments(std::uint32_t length, std::uint32_t mss) {
  return length < 2 * mss ? mss : length - length % mss;
}

// RFC 9293 §3.8.6.2.1: what may be sent, and no silly windows.
Chunk fit_window(const Tcb& tcb, std::uint64_t waiting, std::uint32_t mss, std::uint32_t window, std::uint32_t limit,
                 bool fin) {
  const auto unsent = static_cast<std::uint32_t>(std::min<std::uint64_t>(waiting, ~0U));
  std::uint32_t length = std::min({unsent, window, limit});
  if (length == unsent) {
    if (fin) return {Hold::kNone, length, window > length};  // FIN takes a number of the window, too
    if (length < mss) return {hold_small(tcb) ? Hold::kSmall : Hold::kNone, length};
    const std::uint32_t whole = whole_segments(length, mss);
    return {Hold::kNone, whole != length && hold_small(tcb) ? whole : length};
  }
  if (length >= mss) return {Hold::kNone, whole_segments(length, mss)};
  const bool half = length != 0 && length >= tcb.max_snd_wnd / 2;
  return {half || (length != 0 && tcb.has(kForceOutput)) ? Hold::kNone : Hold::kWindow, length};
}

Chunk next_chunk(Tcb& tcb, std::uint64_t unsent, std::uint32_t mss, std::uint32_t frame_limit) {
  const bool fin = tcb.has(kFinQueued) && !tcb.has(kFinSent);
  if (unsent == 0 && !fin) return {Hold::kNothing};
  const std::uint32_t window = usable_window(tcb);
  if (window == 0) return {Hold::kWindow};
  // An empty pipe always takes a whole segment; a part of a segment is not worth sending (RFC 6675 §5 step C).
  const std::uint32_t cwnd = tcb.congestion.cwnd(), pipe = tcb.scoreboard.pipe();
  const std::uint32_t room = pipe == 0 ? std::max(cwnd, mss) : cwnd > pipe ? cwnd - pipe : 0;
  if (room < mss && room < unsent) return {Hold::kCwnd};
  if (room == 0 && unsent != 0) return {Hold::kCwnd};
  return fit_window(tcb, unsent, mss, window, std::min(frame_limit, std::max(room, mss)), fin);
}

// PSH is set at the end of what was written (RFC 9293 §3.9.1.2), unless the writer said that more comes. It is also set
// on each large frame, so that the receiver may pass it on at once. A FIN alone has no PSH. As Linux: tcp_mark_push(),
// __tcp_transmit_skb(), tcp_send_fin().
std::uint8_t data_flags(const Tcb& tcb, const Chunk& chunk, std::uint32_t mss, bool last) {
  const bool ends = last && chunk.length != 0 && !tcb.has(kMore);
  return static_cast<std::uint8_t>(kAck | (ends || chunk.length > mss ? kPsh : 0) | (chunk.fin ? kFin : 0));
}

bool send_chunk(Env& env, Tcb& tcb, const Chunk& chunk, std::uint64_t unsent, std::uint32_t mss) {
  const std::uint8_t flags = data_flags(tcb, chunk, mss, chunk.length == unsent);
  const auto sent = send_data(env, tcb, tcb.snd_nxt, chunk.length, flags);
  if (!sent) return false;
  const bool fin = chunk.fin && *sent == chunk.length;
  const std::uint32_t numbers = *sent + (fin ? 1 : 0);
  // An overlay's own records do not make Nagle's algorithm wait, and do not answer anything.
  const bool text = tcb.overlay == nullptr || has_program_bytes(tcb, tcb.snd_nxt, *sent);
  if (tcb.in_flight() == 0) tcb.progress_ms = milliseconds_of(env.now());
  tcb.scoreboard.on_sent(tcb.seq_of(tcb.snd_nxt), numbers);
  tcb.snd_nxt += numbers;
  if (fin) tcb.set(kFinSent);
  if (*sent < mss && text) tcb.small_end = tcb.seq_of(tcb.snd_nxt);
  if (!tcb.probe.running()) tcb.probe.start(tcb.seq_of(tcb.snd_nxt), env.now());
  if (tcb.received != 0 && text) tcb.quick_acks = 0;  // question and answer: ACKs travel with data
  return true;
}

// On paths with a shorter round trip, frames are as large as the port allows.
constexpr Duration kNear = std::chrono::microseconds(512);

// On longer paths a frame carries what the connection sends in a millisecond, at least two segments. ACKs then come
// back evenly, and a loss is seen soon (tcp_tso_autosize(), tcp_update_pacing_rate() of Linux).
std::uint32_t size_by_pace(const Tcb& tcb, std::uint32_t mss) {
  constexpr std::uint64_t kLargest = 65536;
  const std::uint64_t cwnd = std::max(tcb.congestion.cwnd(), tcb.in_flight());
  const unsigned percent = tcb.congestion.cwnd() < tcb.congestion.ssthresh() / 2 ? 200 : 120;
  const auto srtt_us = static_cast<std::uint64_t>(std::max<Duration::rep>(tcb.rtt.srtt().count() / 1000, 1));
  const std::uint64_t in_a_ms = cwnd * percent / 100 * (1'000'000 / 1024) / srtt_us;
  const auto halvings = static_cast<std::uint64_t>(tcb.rtt.min_rtt() / kNear);
  const std::uint64_t bytes = std::min(kLargest, in_a_ms + (halvings < 17 ? kLargest >> halvings : 0));
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(bytes - bytes % mss, 2 * mss));
}

// Allows at least two frames in flight, so that ACKs of the first make room while the second is under way
// (tcp_cwnd_test() of Linux).
std::uint32_t burst_limit(Env& env, const Tcb& tcb, std::uint32_t mss) {
  const std::uint32_t most = std::min(frame_limit(env, tcb), std::max(tcb.congestion.cwnd() / 2, mss));
  return tcb.rtt.min_rtt() < kNear ? most : std::min(most, size_by_pace(tcb, mss));
}

Hold send_new(Env& env, Tcb& tcb) {
  const std::uint32_t mss = segment_room(tcb);
  std::uint32_t limit = 0;
  for (;;) {
    const std::uint64_t unsent = tcb.unsent();
    if (limit == 0 && unsent > mss) limit = burst_limit(env, tcb, mss);
    const Chunk chunk = next_chunk(tcb, unsent, mss, std::max(limit, mss));
    if (chunk.hold != Hold::kNone) return chunk.hold;
    if (!send_chunk(env, tcb, chunk, unsent, mss)) return Hold::kDevice;
  }
}

// --- Retransmission

bool retransmit(Env& env, Tcb& tcb, Scoreboard::Segment segment) {
  const std::uint64_t position = tcb.position_of(segment.begin);
  const std::uint64_t end = std::min(position + segment.length, tcb.text_end());
  const auto length = static_cast<std::uint32_t>(end > position ? end - position : 0);
  const bool fin = length < segment.length;  // FIN takes the number after the last byte
  const bool last = position + length == tcb.text_end();
  const auto sent = send_data(env, tcb, position, length, data_flags(tcb, {Hold::kNone, length, fin}, length, last));
  if (!sent) return false;
  segment.length = *sent + (fin && *sent == length ? 1 : 0);
  tcb.scoreboard.on_retransmitted(segment);
  tcb.probe.cancel();
  tcb.retransmits++;
  tcb.bytes_retransmitted += *sent;
  env.count().tcp_retransmits++;
  return true;
}

// If the peer has taken back its window, only the first segment of a loss is sent again beyond it (RFC 9293 §3.8.6).
// The shown window may have been rounded down.
bool fits_window(const Tcb& tcb, const Scoreboard::Segment& segment) {
  const std::uint64_t edge = tcb.snd_una + tcb.snd_wnd + (std::uint64_t{1} << tcb.snd_scale);
  return tcb.position_of(segment.begin) + segment.length <= edge;
}

// Sends lost segments again, RFC 6675 §5 step C. False: the device has no room.
[[gnu::noinline, gnu::cold]] bool retransmit_lost(Env& env, Tcb& tcb) {
  const std::uint32_t mss = segment_room(tcb);
  for (;;) {
    const std::uint32_t pipe = tcb.scoreboard.pipe();
    const bool first = tcb.has(kRetransmitNow);
    if (!first && pipe != 0 && pipe + mss > tcb.congestion.cwnd()) return true;
    const bool new_data = tcb.unsent() != 0 && usable_window(tcb) >= std::min<std::uint64_t>(mss, tcb.unsent());
    const auto segment = tcb.scoreboard.next_segment(mss, mss, new_data);
    if (segment.length == 0) return true;
    if (!first && !fits_window(tcb, segment)) return true;
    if (!retransmit(env, tcb, segment)) return false;
    tcb.clear(kRetransmitNow);
  }
}

// --- Timers afterwards

void settle_timers(Env& env, Tcb& tcb, Hold hold) {
  if (tcb.in_flight() != 0) {
    if (deadline(tcb, Timer::kRetransmit) == kNever || tcb.has(kPersist)) arm_retransmit(env, tcb);
    return;
  }
  const bool armed = tcb.has(kPersist) && deadline(tcb, Timer::kRetransmit) != kNever;
  if (hold == Hold::kWindow) {
    if (armed) return;
    tcb.progress_ms = milliseconds_of(env.now());  // from now on the unsent bytes wait (RFC 5482)
    arm_persist(env, tcb, tcb.rtt.rto(env.core.rto_bounds));
  } else if (hold == Hold::kSmall) {
    // Linux's probe timer sends these bytes (tcp_probe0_base()).
    if (!armed) arm_persist(env, tcb, std::max(kCorkLimit, tcb.rtt.rto(env.core.rto_bounds)));
  } else {
    disarm(tcb, Timer::kRetransmit);
    tcb.clear(kPersist);
  }
}

// RFC 5681 §4.1: after a pause cwnd no longer describes the path.
void restart_after_idle(Env& env, Tcb& tcb) {
  const Duration idle = milliseconds_since(tcb.last_sent_ms, milliseconds_of(env.now()));
  if (idle <= env.core.config.rto_min || tcb.unsent() == 0) return;
  tcb.congestion.on_idle_restart(env.now(), idle, tcb.rtt.rto(env.core.rto_bounds));
}

// Notes the largest flight, and whether cwnd limited it, until the flight is acknowledged: tcp_cwnd_validate() of
// Linux.
void note_usage(Tcb& tcb, bool limited) {
  const std::uint32_t flight = tcb.in_flight();
  const bool over = after_or_at(tcb.seq_of(tcb.snd_una), tcb.usage_end);
  if (!limited && !over && (tcb.usage_limited || flight <= tcb.usage_flight)) return;
  tcb.usage_limited = limited;
  tcb.usage_flight = flight;
  tcb.usage_end = tcb.seq_of(tcb.snd_nxt);
}

bool is_cwnd_limited(const Tcb& tcb) {
  return tcb.scoreboard.pipe() + tcb.mss > tcb.congestion.cwnd();
}

// As tcp_write_xmit() and tcp_cwnd_validate() of Linux. A full buffer stays the limit until its writer was told of
// room.
Limit limit_by(const Tcb& tcb, Hold hold, bool cwnd_limited) {
  if (tcb.send_end() == tcb.snd_una) return Limit::kIdle;
  if (tcb.limit == Limit::kBuffer) return Limit::kBuffer;
  if (cwnd_limited) return Limit::kNone;
  if (hold == Hold::kWindow) return Limit::kWindow;
  return hold == Hold::kNothing && tcb.refused ? Limit::kBuffer : Limit::kNone;
}

// Lets an overlay make records, as there is room for them.
[[gnu::noinline, gnu::cold]] bool refill(Env& env, Tcb& tcb, Hold hold) {
  return (hold == Hold::kNothing || hold == Hold::kSmall) && call_refill(env, tcb);
}

void resume_one(Env& env, Tcb& tcb) {
  tcb.clear(kBlocked);
  if (tcb.has(kZombie)) return reap(env, tcb);
  env.core.current = &tcb;
  if (tcb.has(kSynOwed)) return open_output(env, tcb);
  output(env, tcb);
  if (tcb.has(kAckNow)) acknowledge(env, tcb);
}

void resume_port(Env& env, std::uint16_t port) {
  TcbList& list = env.core.blocked[port];
  // A connection that finds no room again links itself after `last`: so each gets one turn.
  const Tcb* last = list.tail;
  while (Tcb* tcb = list.head) {
    if (!tcb->has(kZombie) && !env.ctx.queue(port).can_transmit()) return;
    list.head = tcb->blocked_next;
    if (list.head == nullptr) {
      list.tail = nullptr;
      env.core.blocked_ports &= ~(1U << port);
    }
    resume_one(env, *tcb);
    if (tcb == last) return;
  }
}

}  // namespace

void output(Env& env, Tcb& tcb) {
  tcb.clear(kTryOutput);
  if (!sends(tcb.state)) return;
  if (tcb.in_flight() == 0) restart_after_idle(env, tcb);
  const std::uint64_t before = tcb.snd_nxt;
  Hold hold = Hold::kDevice;
  if (tcb.scoreboard.clean() || retransmit_lost(env, tcb)) {
    do {
      hold = send_new(env, tcb);
    } while (tcb.overlay != nullptr && refill(env, tcb, hold));
  }
  if (hold == Hold::kDevice) block(env, tcb);
  const bool limited = hold == Hold::kCwnd || is_cwnd_limited(tcb);
  if (limited || tcb.snd_nxt != before) note_usage(tcb, limited);
  turn_limit(env, tcb, limit_by(tcb, hold, limited));
  if (hold != Hold::kCwnd) tcb.clear(kForceOutput);
  settle_timers(env, tcb, hold);
}

void note_refused(Env& env, Tcb& tcb) {
  tcb.refused = true;
  if (tcb.unsent() == 0) turn_limit(env, tcb, limit_by(tcb, Hold::kNothing, is_cwnd_limited(tcb)));
}

// __tcp_sock_set_nodelay() and __tcp_sock_set_cork() of Linux: TCP_NODELAY also sends bytes that a cork holds.
void push_written(Env& env, Tcb& tcb) {
  tcb.clear(kHoldMore);
  if (tcb.options.no_delay) tcb.set(kForceOutput);
  output(env, tcb);
}

void acknowledge(Env& env, Tcb& tcb) {
  if (send_ack(env, tcb)) return;
  tcb.set(kAckNow);
  block(env, tcb);
}

void open_output(Env& env, Tcb& tcb) {
  tcb.clear(kSynOwed);
  if (send_syn(env, tcb)) return;
  tcb.set(kSynOwed);
  block(env, tcb);
}

void repeat_open(Env& env, Tcb& tcb) {
  tcb.probe.cancel();
  open_output(env, tcb);
}

void send_probe(Env& env, Tcb& tcb) {
  send_empty(env, tcb, tcb.seq_of(tcb.snd_una) - 1, kAck);
}

namespace {

// tcp_check_space() of Linux runs after tcp_data_snd_check(): what has just left no longer counts as unsent.
void output_in_burst(Env& env, Tcb& tcb) {
  output(env, tcb);
  if (tcb.has(kWantWritable) && tcb.options.not_sent_low_water != 0) [[unlikely]]
    wake_writer(env, tcb);
}

}  // namespace

void touch(Env& env, Tcb& tcb) {
  if (tcb.has(kInBurst)) return;
  tcb.set(kInBurst);
  env.core.burst.push<&Tcb::burst_next>(tcb);
}

void end_burst(Env& env) {
  while (Tcb* tcb = env.core.burst.head) {
    env.core.current = tcb;
    if (tcb->overlay != nullptr) [[unlikely]]
      call_progress(env, *tcb);
    if (tcb->has(kTryOutput)) output_in_burst(env, *tcb);
    if (tcb->has(kAckNow)) acknowledge(env, *tcb);
    env.core.burst.head = tcb->burst_next;
    if (env.core.burst.head == nullptr) env.core.burst.tail = nullptr;
    tcb->clear(kInBurst);
    if (tcb->has(kZombie)) reap(env, *tcb);
  }
}

void resume_blocked(Env& env) {
  std::uint32_t ports = env.core.blocked_ports;
  for (; ports != 0; ports &= ports - 1) resume_port(env, static_cast<std::uint16_t>(std::countr_zero(ports)));
}

namespace {

// Only the process that has the port knows what is queued.
bool may_be_queued(Env& env, const Tcb& tcb) {
  const PortQueue& queue = env.ctx.queue(tcb.path.port);
  const bool of_another_process = queue.port() != nullptr ? queue.caps().arena_frames : env.ctx.shared;
  return of_another_process || queue.pending() != 0;
}

}  // namespace

void unpin_sent(Env& env) {
  Tcb* tcb = std::exchange(env.core.pinned, nullptr);
  while (tcb != nullptr) {
    Tcb* next = std::exchange(tcb->pinned_next, nullptr);
    if (may_be_queued(env, *tcb)) {
      tcb->pinned_next = std::exchange(env.core.pinned, tcb);
    } else {
      tcb->clear(kPinned);
      tcb->ring.unpin(env.core.memory);
      if (tcb->has(kWantWritable)) wake_writer(env, *tcb);  // the block may grow again
      reap(env, *tcb);
    }
    tcb = next;
  }
}

}  // namespace bypass::tcp
