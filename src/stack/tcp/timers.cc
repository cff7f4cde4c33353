#include "stack/tcp/timers.h"

#include <algorithm>

#include "stack/tcp/open/accept.h"
#include "stack/tcp/output/detached.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {
namespace {

// Own records of a protocol over TCP are nothing that the program waits for. What the program has written counts, on
// whichever path it goes, and so does the end of its direction.
bool awaits_ack(const Tcb& tcb) {
  const bool any = tcb.in_flight() + tcb.unsent() != 0;
  if (tcb.overlay == nullptr) return any;
  const bool ends = tcb.has(kFinQueued) || (tcb.overlay->shut && !tcb.overlay->delivered);
  return (any && ends) || !tcb.ring.empty();
}

// A protocol's own records are repeated for as long as needed: an idle connection is not ended by an outage.
bool is_idle_beneath(const Tcb& tcb) {
  return tcb.overlay != nullptr && !tcb.orphan() && !awaits_ack(tcb);
}

Instant user_deadline(const Env& env, const Tcb& tcb) {
  if (tcb.options.user_timeout_ms == 0 || is_idle_beneath(tcb)) return kNever;
  const auto since_progress = milliseconds_since(tcb.progress_ms, milliseconds_of(env.now()));
  const auto timeout = std::chrono::milliseconds(tcb.options.user_timeout_ms);
  return std::chrono::floor<std::chrono::milliseconds>(env.now()) - since_progress + timeout;
}

unsigned retries(const Env& env, const Tcb& tcb) {
  const unsigned most = env.core.config.retries2;
  // no program waits for its data any more
  return tcb.orphan() ? std::min(most, env.core.config.orphan_retries) : most;
}

// RFC 9293 §3.8.3 (R2), RFC 5482.
bool exhausted(Env& env, const Tcb& tcb, unsigned attempts) {
  if (is_idle_beneath(tcb)) return false;
  if (tcb.options.user_timeout_ms != 0) return env.now() >= user_deadline(env, tcb);
  return attempts >= retries(env, tcb);
}

void time_out(Env& env, Tcb& tcb) {
  const Error why = tcb.soft_error != Error::kNone ? tcb.soft_error : Error::kTimedOut;
  finish(env, tcb, why, Why::kTimer);
}

// --- SYN, SYN-ACK

// With more than half of the SYN queue taken, fewer: peers that answer do so soon (reqsk_timer_handler() of Linux).
unsigned synack_retries(const Env& env, const Tcb& tcb) {
  constexpr unsigned kUnderPressure = 2;
  const Listener* listener = env.core.listeners.get(tcb.listener);
  const bool pressed = listener != nullptr && listener->half_open > env.core.config.syn_queue / 2;
  return pressed ? std::min(env.core.config.synack_retries, kUnderPressure) : env.core.config.synack_retries;
}

unsigned syn_retries(const Env& env, const Tcb& tcb) {
  if (tcb.has(kPassive)) return synack_retries(env, tcb);
  return tcb.options.syn_retries != 0 ? tcb.options.syn_retries : env.core.config.syn_retries;
}

void retry_syn(Env& env, Tcb& tcb) {
  if (tcb.attempts >= syn_retries(env, tcb)) return time_out(env, tcb);
  if (env.now() >= user_deadline(env, tcb)) return time_out(env, tcb);
  tcb.attempts++;
  tcb.set(kSynLost);
  tcb.rtt.on_timeout();
  tcb.retransmits++;
  env.count().tcp_retransmits++;
  repeat_open(env, tcb);
  arm_retransmit(env, tcb);
}

// --- Data and FIN (RFC 6298 §5.4 to §5.7)

// A peer that closed its window on data in flight is alive as long as it answers: then R2 does not end the connection.
// A user timeout still does (tcp_rtx_probe0_timed_out() of Linux), and so does an orphan's limit, as no program waits.
bool answers_with_closed_window(const Tcb& tcb) {
  if (tcb.orphan()) return false;
  const auto after_sending = static_cast<std::int32_t>(milliseconds_of(tcb.last_received) - tcb.last_sent_ms);
  return tcb.options.user_timeout_ms == 0 && tcb.snd_wnd == 0 && after_sending >= 0;
}

void retransmission_timeout(Env& env, Tcb& tcb) {
  env.count().tcp_rto++;
  if (tcb.counted && is_one_too_many(env, tcb)) return drop_orphan(env, tcb);
  if (exhausted(env, tcb, tcb.rtt.backoff()) && !answers_with_closed_window(tcb)) return time_out(env, tcb);
  const bool again = tcb.rtt.backoff() != 0;
  tcb.rtt.on_timeout();
  lose_flight(env, tcb, again);
  output(env, tcb);
}

// --- Persist (RFC 9293 §3.8.6.1), and the cork's limit

// An orphan's peer may answer probes for ever. It gets the time in which the doubling pauses reach the longest one
// (tcp_probe_timer() of Linux): about three minutes.
bool has_probed_enough(const Env& env, const Tcb& tcb) {
  if (tcb.orphan() && tcb.rtt.rto(env.core.rto_bounds) >= env.core.rto_bounds.max) return true;
  return tcb.probes >= retries(env, tcb);
}

void persist_timeout(Env& env, Tcb& tcb) {
  tcb.clear(kPersist);
  if (tcb.counted && is_one_too_many(env, tcb)) return drop_orphan(env, tcb);
  if (tcb.snd_wnd > tcb.in_flight()) {
    tcb.clear(kMore | kHoldMore);  // Linux's probe carries PSH (tcp_write_wakeup())
    tcb.set(kForceOutput);
    return output(env, tcb);
  }
  // As Linux: the user timeout counts answered probes too, and does not replace R2 as it does for data.
  if (env.now() >= user_deadline(env, tcb) || has_probed_enough(env, tcb)) return time_out(env, tcb);
  tcb.probes++;
  tcb.rtt.on_timeout();
  env.count().tcp_zero_window_probes++;
  send_probe(env, tcb);
  arm_persist(env, tcb, tcb.rtt.rto(env.core.rto_bounds));
}

void on_retransmit(Env& env, Tcb& tcb) {
  if (!synchronized(tcb.state)) return retry_syn(env, tcb);
  if (tcb.has(kPersist)) return persist_timeout(env, tcb);
  if (tcb.in_flight() != 0) retransmission_timeout(env, tcb);
}

// The timer is not restarted: a link that comes and goes must not delay the end of a connection whose peer is gone.
void resend(Env& env, Tcb& tcb) {
  if (!synchronized(tcb.state)) {
    tcb.retransmits++;
    env.count().tcp_retransmits++;
    return repeat_open(env, tcb);
  }
  if (tcb.has(kPersist)) {
    env.count().tcp_zero_window_probes++;
    return send_probe(env, tcb);
  }
  if (tcb.in_flight() == 0) return;
  const Instant due = deadline(tcb, Timer::kRetransmit);
  lose_flight(env, tcb, true);
  output(env, tcb);
  if (due < deadline(tcb, Timer::kRetransmit)) arm(env, tcb, Timer::kRetransmit, due);
}

void on_delayed_ack(Env& env, Tcb& tcb) {
  if (!tcb.has(kAckDelayed)) return;
  env.count().tcp_delayed_acks++;
  acknowledge(env, tcb);
}

// --- Idle

void keep_alive(Env& env, Tcb& tcb) {
  if (is_heard_of(env, tcb)) {
    tcb.last_received = env.now();
    tcb.probes = 0;
  }
  const auto interval = std::chrono::seconds(tcb.options.keep_interval_s);
  const Instant due = tcb.last_received + std::chrono::seconds(tcb.options.keep_idle_s) + tcb.probes * interval;
  if (env.now() < due || awaits_ack(tcb)) {
    return arm(env, tcb, Timer::kIdle, std::max(due, env.now() + std::chrono::seconds(1)));
  }
  // RFC 5482 §4.2, as Linux has it: the user timeout decides instead of TCP_KEEPCNT.
  const auto user_timeout = std::chrono::milliseconds(tcb.options.user_timeout_ms);
  const bool given_up = tcb.options.user_timeout_ms != 0
                            ? tcb.probes != 0 && env.now() - tcb.last_received >= user_timeout
                            : tcb.probes >= tcb.options.keep_count;
  if (given_up) {
    send_reset(env, tcb);
    return time_out(env, tcb);
  }
  tcb.probes++;
  send_probe(env, tcb);
  arm(env, tcb, Timer::kIdle, env.now() + interval);
}

void on_idle(Env& env, Tcb& tcb) {
  if (tcb.has(kDeferred)) return accept_deferred(env, tcb);
  if (tcb.orphan() && tcb.state == State::kFinWait2) return finish(env, tcb, Error::kNone, Why::kUser);
  if (tcb.options.keep_alive) keep_alive(env, tcb);
}

void fire(Env& env, Tcb& tcb) {
  constexpr void (*kHandlers[])(Env&, Tcb&) = {on_retransmit, on_delayed_ack, on_idle};
  static_assert(std::size(kHandlers) == kTimers);
  // Deadlines may move away without a change of the wheel.
  if (const Instant at = earliest_deadline(tcb); at > env.now()) {
    if (at != kNever) env.core.wheel.schedule(tcb, at);
    return;
  }
  env.core.current = &tcb;
  touch(env, tcb);  // keeps the Tcb in the slab while its handlers run; end_burst() releases it
  if (tcb.overlay != nullptr && tcb.overlay->deadline <= env.now()) tcb.overlay->deadline = kNever;
  for (std::size_t i = 0; i < kTimers; i++) {
    if (tcb.deadline[i] > env.now()) continue;
    tcb.deadline[i] = kNever;
    kHandlers[i](env, tcb);
    if (tcb.state == State::kClosed) return;
  }
  const Instant next = earliest_deadline(tcb);
  if (next != kNever) env.core.wheel.schedule(tcb, next);
}

}  // namespace

void lose_flight(Env& env, Tcb& tcb, bool again) {
  tcb.congestion.on_rto(env.now(), tcb.in_flight(), again);
  tcb.scoreboard.on_timeout(env.core.memory, tcb.seq_of(tcb.snd_nxt));
  tcb.probe.cancel();
  tcb.set(kRetransmitNow);
  arm_retransmit(env, tcb);
}

Instant earliest_deadline(const Tcb& tcb) {
  const Instant at = *std::min_element(tcb.deadline.begin(), tcb.deadline.end());
  return tcb.overlay == nullptr ? at : std::min(at, tcb.overlay->deadline);
}

void arm(Env& env, Tcb& tcb, Timer timer, Instant at) {
  deadline(tcb, timer) = at;
  if (!tcb.wheel.scheduled() || at < tcb.wheel.expires()) env.core.wheel.schedule(tcb, at);
}

void stop_timers(Env& env, Tcb& tcb) {
  tcb.deadline.fill(kNever);
  if (tcb.overlay != nullptr) tcb.overlay->deadline = kNever;
  env.core.wheel.cancel(tcb);
}

void arm_retransmit(Env& env, Tcb& tcb) {
  tcb.clear(kPersist);
  const Instant at = env.now() + tcb.rtt.rto(env.core.rto_bounds);
  arm(env, tcb, Timer::kRetransmit, std::min(at, std::max(user_deadline(env, tcb), env.now())));
}

void arm_persist(Env& env, Tcb& tcb, Duration after) {
  tcb.set(kPersist);
  arm(env, tcb, Timer::kRetransmit, std::min(env.now() + after, std::max(user_deadline(env, tcb), env.now())));
}

void arm_idle(Env& env, Tcb& tcb) {
  const auto& config = env.core.config;
  if (tcb.orphan() && tcb.state == State::kFinWait2) {
    const Duration own = std::chrono::seconds(std::max<int>(tcb.options.linger2_s, 0));
    return arm(env, tcb, Timer::kIdle, env.now() + (tcb.options.linger2_s != 0 ? own : config.fin_wait2));
  }
  if (tcb.has(kDeferred)) {
    return arm(env, tcb, Timer::kIdle, env.now() + std::chrono::seconds(tcb.options.defer_accept_s));
  }
  // A connection in TIME-WAIT sends no probes (RFC 9293 §3.10.7.4): its Tcb only waits for the program's close().
  if (!tcb.options.keep_alive || !synchronized(tcb.state) || tcb.state == State::kTimeWait)
    return disarm(tcb, Timer::kIdle);
  arm(env, tcb, Timer::kIdle, tcb.last_received + std::chrono::seconds(tcb.options.keep_idle_s));
}

void resend_after_outage(Env& env) {
  env.core.recent_resets.recent(env.now(), [&env](const RecentReset& each) { repeat_farewell(env, each); });
  env.core.recent_resets.begin_repeats(env.now());
  env.core.tcbs.for_each([&env](Tcb& tcb) {
    tcb.challenged = 0;  // that answer may be lost, too
    if (tcb.state == State::kClosed || deadline(tcb, Timer::kRetransmit) == kNever) return;
    env.core.current = &tcb;
    touch(env, tcb);
    resend(env, tcb);
  });
  end_burst(env);
}

void ask_after_announcement(Env& env, std::span<const IpAddress> peers) {
  env.count().tcp_announcement_walks++;
  env.core.tcbs.for_each([&env, peers](Tcb& tcb) {
    if (!synchronized(tcb.state) || std::ranges::find(peers, tcb.path.remote) == peers.end()) return;
    const bool waits = deadline(tcb, Timer::kRetransmit) != kNever;
    const bool in_vain = waits && (tcb.rtt.backoff() != 0 || tcb.has(kPersist));
    if (waits && !in_vain) return;
    env.core.current = &tcb;
    touch(env, tcb);
    tcb.set(kAckNow);  // starts no timer: a peer that is announced repeatedly and never answers must time out as usual
  });
  end_burst(env);
}

void run_timers(Env& env) {
  env.core.wheel.expire(env.now(), [&env](Tcb& tcb) { fire(env, tcb); });
  expire_time_waits(env);
  env.core.recent_resets.repeat(env.now(), [&env](const RecentReset& each) { repeat_farewell(env, each); });
  end_burst(env);
}

}  // namespace bypass::tcp
