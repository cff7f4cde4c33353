// What an ACK does: the send ring, round-trip times, congestion window and loss recovery.
#include <algorithm>
#include <utility>

#include "stack/tcp/input/input.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

// A ring below this size need not be kept small; above it, the size follows the window that the path can use.
constexpr std::uint32_t kSmallestTuned = 256U << 10;

// Growth counts only what left while cwnd was the limit. Slow start may at most double what was in flight, so that a
// sender that stops and goes does not stay small (RFC 7661's concern; tcp_is_cwnd_limited() of Linux).
bool app_limited(const Tcb& tcb) {
  if (tcb.usage_limited) return false;
  return !tcb.congestion.in_slow_start() || tcb.congestion.cwnd() >= 2 * tcb.usage_flight;
}

[[gnu::noinline, gnu::cold]] void begin_recovery(Env& env, Tcb& tcb) {
  env.count().tcp_fast_retransmits++;
  tcb.congestion.on_loss_event(env.now(), tcb.in_flight());
  tcb.scoreboard.enter_recovery(tcb.seq_of(tcb.snd_nxt));
  tcb.probe.cancel();
  tcb.set(kRetransmitNow);
}

// Bytes that MSG_MORE held back go with the next ACK, as on Linux: the flag belongs to the call, not to the connection.
void try_output(Env& env, Tcb& tcb) {
  tcb.clear(kHoldMore);
  tcb.set(kTryOutput);
  touch(env, tcb);
}

// The peer took back its window with bytes in flight, and opens it again. It dropped those bytes meanwhile, and also
// each one that the timer sent. With less than a unit in flight the window was only rounded down (RFC 7323 §2.3).
bool reopens(const Tcb& tcb, std::uint32_t wnd_before) {
  return wnd_before == 0 && tcb.in_flight() >> tcb.snd_scale != 0;
}

// Out of line, so that update_window() needs no stack frame.
[[gnu::noinline]] void use_wider_window(Env& env, Tcb& tcb, std::uint32_t before) {
  if (tcb.has(kPersist)) tcb.rtt.reset_backoff();  // the backoff was the probes': it says nothing about lost data
  if (reopens(tcb, before)) {
    tcb.rtt.reset_backoff();
    lose_flight(env, tcb, true);
    return try_output(env, tcb);
  }
  if (tcb.send_end() > tcb.snd_nxt || !tcb.scoreboard.clean()) try_output(env, tcb);
}

void after_scoreboard(Env& env, Tcb& tcb) {
  if (tcb.scoreboard.clean()) return;
  if (tcb.scoreboard.should_recover()) begin_recovery(env, tcb);
  try_output(env, tcb);
}

}  // namespace

void update_window(Env& env, Tcb& tcb, const Segment& s) {
  if (before(s.seq, tcb.snd_wl1) || (s.seq == tcb.snd_wl1 && before(s.ack, tcb.snd_wl2))) return;
  tcb.snd_wl1 = s.seq;
  tcb.snd_wl2 = s.ack;
  const std::uint32_t wnd = std::uint32_t{s.window} << (s.of_syn ? 0 : tcb.snd_scale);
  if (wnd == tcb.snd_wnd) return;
  const std::uint32_t before = std::exchange(tcb.snd_wnd, wnd);
  tcb.max_snd_wnd = std::max(tcb.max_snd_wnd, wnd);
  if (wnd > before) use_wider_window(env, tcb, before);
}

Duration take_sample(Env& env, Tcb& tcb, const Segment& s) {
  const bool timed = tcb.probe.running();
  if (const auto rtt = tcb.probe.on_ack(s.ack, env.now())) {
    const Duration sample = std::max(*rtt, Duration{1});
    tcb.rtt.on_sample(env.now(), sample);
    env.core.network.confirm(env.ctx, tcb.path);
    return sample;
  }
  if (timed || !tcb.has(kTimestamps) || s.options.ts_echo == 0) return {};
  const std::uint32_t ticks = timestamp_clock(env.now()) + tcb.ts_offset - s.options.ts_echo;
  if (ticks > 1U << 20) return {};  // 18 minutes: not an echo of our timestamp
  const Duration sample{std::int64_t{std::max(ticks, 1U)} << kTimestampShift};
  tcb.rtt.on_sample(env.now(), sample);
  return sample;
}

void on_new_ack(Env& env, Tcb& tcb, const Segment& s, std::uint32_t acked) {
  const std::uint32_t flight = tcb.in_flight();
  AckEvent event;
  event.now = env.now();
  event.flight = flight;
  event.app_limited = app_limited(tcb);
  tcb.snd_una += acked;
  if (tcb.overlay == nullptr) {
    tcb.ring.advance(env.core.memory, std::min(tcb.snd_una, tcb.ring.end()));
  } else {
    on_overlay_acked(env, tcb);
  }
  event.rtt = take_sample(env, tcb, s);
  event.srtt = tcb.rtt.srtt();
  event.una = s.ack;
  event.in_timeout = tcb.scoreboard.in_timeout();
  event.nxt = tcb.seq_of(tcb.snd_nxt);
  const auto update = tcb.scoreboard.on_ack(env.core.memory, s.ack, event.nxt, s.options.sack_blocks(), false, tcb.mss);
  event.acked = update.delivered;  // bytes that SACK reported earlier were counted then
  event.in_recovery = tcb.scoreboard.in_recovery();
  tcb.congestion.on_ack(event);
  tcb.progress_ms = milliseconds_of(env.now());
  tcb.rtt.reset_backoff();
  after_scoreboard(env, tcb);
  // RFC 6298 §5.2, §5.3.
  if (tcb.in_flight() == 0) {
    if (tcb.send_end() == tcb.snd_una) turn_limit(env, tcb, Limit::kIdle);
    if (!tcb.has(kPersist)) disarm(tcb, Timer::kRetransmit);
  } else {
    arm_retransmit(env, tcb);
  }
  if (tcb.send_end() > tcb.snd_nxt) try_output(env, tcb);
  if (tcb.has(kWantWritable)) wake_writer(env, tcb);
}

void on_old_ack(Env& env, Tcb& tcb, const Segment& s) {
  if (tcb.in_flight() == 0) return;
  const SeqNum una = tcb.seq_of(tcb.snd_una);
  // The definition of RFC 5681 §2. RFC 6675 §2 instead requires news in the SACK blocks, which the scoreboard checks.
  const bool duplicate = s.ack == una && s.payload == 0 && !s.has(kFin);
  tcb.scoreboard.on_ack(env.core.memory, una, tcb.seq_of(tcb.snd_nxt), s.options.sack_blocks(), duplicate, tcb.mss);
  after_scoreboard(env, tcb);
}

// Linux doubles SO_SNDBUF for its bookkeeping (sock_setsockopt()), which in large buffers uses almost nothing.
std::uint32_t most_send_buffer(const Core& core, const Tcb& tcb) {
  return tcb.options.send_buffer != 0 ? 2 * tcb.options.send_buffer : core.config.send_buffer;
}

std::uint32_t send_limit(const Core& core, const Tcb& tcb) {
  const std::uint32_t most = most_send_buffer(core, tcb);
  // A ring that an overlay reads from grows no more: when it is full, a waiting writer must not be told of room.
  if (tcb.overlay != nullptr && tcb.overlay->pins_ring && tcb.ring.capacity() != 0)
    return std::min(most, static_cast<std::uint32_t>(tcb.ring.capacity()));
  if (tcb.overlay != nullptr && tcb.overlay->roomy) return most;
  return tcb.options.send_buffer != 0 ? most : std::min(most, std::max(kSmallestTuned, 2 * tcb.congestion.most_cwnd()));
}

// tcp_stream_memory_free() of Linux: a write checks it before each buffer that it begins, and then fills the buffer. A
// buffer is a large frame, at most half of the peer's largest window (tcp_xmit_size_goal()).
std::size_t admitted_unsent(const Tcb& tcb) {
  const std::uint64_t most = tcb.options.most_unsent();
  if (most == ~0U) [[likely]]
    return ~std::size_t{0};
  constexpr std::uint32_t kLargestFrame = 65536;
  const std::uint64_t half = std::min(kLargestFrame, tcb.max_snd_wnd / 2);
  const std::uint64_t buffer = std::max<std::uint64_t>(tcb.mss, half - half % tcb.mss);
  const std::uint64_t room = (most + buffer - 1) / buffer * buffer;
  const std::uint64_t unsent = tcb.program_unsent();
  return unsent < room ? room - unsent : 0;
}

// A writer that waits or polls is told when half of what TCP_NOTSENT_LOWAT allows is free.
bool may_tell_of_room(const Tcb& tcb) {
  const std::uint32_t most = tcb.options.most_unsent();
  return most == ~0U || 2 * tcb.program_unsent() < most;
}

void wake_writer(Env& env, Tcb& tcb) {
  const std::uint32_t limit = send_limit(env.core, tcb);
  if (tcb.ring.room(limit) < limit / 3) return;
  if (!may_tell_of_room(tcb)) return;
  tcb.clear(kWantWritable);
  tcb.refused = false;
  if (tcb.limit == Limit::kBuffer) turn_limit(env, tcb, tcb.send_end() == tcb.snd_una ? Limit::kIdle : Limit::kNone);
  env.core.events.post(tcb.event, kEventWritable);
}

}  // namespace bypass::tcp
