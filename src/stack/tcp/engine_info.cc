// The calls of engine.h that tell of a connection, and those that set its options.
#include "stack/tcp/engine.h"

#include <utility>

#include "stack/frame/arrival.h"
#include "stack/tcp/changing.h"
#include "stack/tcp/core.h"
#include "stack/tcp/open/open.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {

State Engine::state(const Tcb& tcb) const {
  return tcb.state;
}

Error Engine::error(const Tcb& tcb) const {
  return tcb.error;
}

Error Engine::take_error(Tcb& tcb) {
  return std::exchange(tcb.error, Error::kNone);
}

Endpoint Engine::local(const Tcb& tcb) const {
  return {tcb.path.local, tcb.flow.local_port};
}

Endpoint Engine::remote(const Tcb& tcb) const {
  return {tcb.path.remote, tcb.flow.remote_port};
}

Instant Engine::arrival_of(const Tcb& tcb, std::size_t bytes) const {
  const Packet* frame = tcb.rx_head;
  if (frame == nullptr) return {};
  while (frame->payload_len < bytes && frame->queue_next != nullptr) {
    bytes -= frame->payload_len;
    frame = frame->queue_next;
  }
  return arrival(*frame);
}

namespace {

// tcp_set_ca_state() of Linux.
CongestionState congestion_state(const Tcb& tcb) {
  if (tcb.scoreboard.in_timeout()) return CongestionState::kLoss;
  if (tcb.scoreboard.in_recovery()) return CongestionState::kRecovery;
  return tcb.scoreboard.clean() ? CongestionState::kOpen : CongestionState::kDisorder;
}

}  // namespace

Info Engine::info(const Tcb& tcb) const {
  Info i;
  i.congestion_state = congestion_state(tcb);
  i.last_sent_ms = tcb.last_sent_ms;
  i.last_received_ms = milliseconds_of(tcb.last_received);
  i.last_data_ms = tcb.last_data_ms;
  i.state = tcb.state;
  i.srtt = tcb.rtt.srtt();
  i.rttvar = tcb.rtt.rttvar();
  i.rto = tcb.rtt.rto(impl_->rto_bounds);
  i.min_rtt = tcb.rtt.min_rtt();
  i.delayed_ack = tcb.received != 0 ? impl_->config.delayed_ack : Duration{};
  i.cwnd = tcb.congestion.cwnd();
  i.ssthresh = tcb.congestion.ssthresh();
  i.snd_wnd = tcb.snd_wnd;
  i.rcv_wnd = tcb.rcv_wnd();
  i.mss = tcb.mss;
  i.rcv_mss = tcb.rcv_mss;
  i.rcv_limit = tcb.rcv_limit;
  i.own_mss = tcb.own_mss;
  i.path_mtu = tcb.path.mtu;
  i.snd_scale = tcb.snd_scale;
  i.rcv_scale = tcb.rcv_scale;
  i.timestamps = tcb.has(kTimestamps);
  i.sack = tcb.has(kSackPermitted);
  i.unsent = static_cast<std::uint32_t>(tcb.unsent());
  i.in_flight = tcb.in_flight();
  i.readable = tcb.rx_bytes;
  i.bytes_retransmitted = tcb.bytes_retransmitted;
  i.bytes_sent = tcb.snd_nxt - (tcb.has(kFinSent) ? 1 : 0) + tcb.bytes_retransmitted;
  i.bytes_acked = tcb.snd_una + (synchronized(tcb.state) && !tcb.has(kPassive) ? 1 : 0);
  i.bytes_received = tcb.received + (tcb.has(kFinReceived) ? 1 : 0);
  i.segments_sent = tcb.segments_out;
  i.segments_received = tcb.segments_in;
  i.retransmits = tcb.retransmits;
  i.backoff = tcb.rtt.backoff();
  i.probes = tcb.probes;
  i.lost = tcb.scoreboard.presumed_lost();
  i.sent_again = tcb.scoreboard.sent_again();
  i.sacked = tcb.scoreboard.sacked_bytes();
  i.limit = tcb.limit;
  i.busy_times = tcb.busy_times;
  return i;
}

void Engine::for_each_unowned(std::size_t most, void (*each)(void* argument, const Unowned&), void* argument) const {
  impl_->tcbs.for_each([&](const Tcb& tcb) {
    if (tcb.event.user != nullptr || tcb.state == State::kClosed) return;
    each(argument, {tcb.state, local(tcb), remote(tcb), &tcb});
  });
  for (const TimeWait* tw = impl_->time_waits.newest; tw != nullptr && most > 0; tw = tw->older, most--)
    each(argument, {State::kTimeWait, {tw->local, tw->flow.local_port}, {tw->remote, tw->flow.remote_port}, nullptr});
}

void Engine::set_options(Context& ctx, Tcb& tcb, const Options& options) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  if (options.congestion != tcb.options.congestion) tcb.congestion.change(options.congestion);
  const bool changes = (options.no_delay && !tcb.options.no_delay) || (!options.cork && tcb.options.cork);
  tcb.options = options;
  apply_options(env, tcb);
  if (!synchronized(tcb.state)) return;
  if (options.quick_ack && tcb.has(kAckDelayed)) acknowledge(env, tcb);
  if (changes) push_written(env, tcb);
}

void Engine::push(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  if (synchronized(tcb.state)) push_written(env, tcb);
}

const Options& Engine::options(const Tcb& tcb) const {
  return tcb.options;
}

void* Engine::current() const {
  return impl_->current;
}

}  // namespace bypass::tcp
