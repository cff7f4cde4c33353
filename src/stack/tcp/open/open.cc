#include "stack/tcp/open/open.h"

#include <algorithm>
#include <optional>

#include "stack/ip/lost_device.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/steering.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

constexpr std::uint32_t kHeaders = 40;  // IPv4 and TCP without options
constexpr std::uint8_t kQuickAcks = 8;  // ACKs sent at once at the start, so that the peer's slow start is not delayed
constexpr std::uint32_t kReuseStep = 65537;  // above the window of the last connection between the endpoints (as Linux)

// --- The source port (RFC 6056 §3.3.3)

enum class Slot : std::uint8_t { kFree, kTaken, kReusable };

Slot look(Env& env, const FlowKey& key, TimeWait*& found) {
  FlowNode* node = env.core.flows.find(key, env.core.flows.hash(key));
  if (node == nullptr) return Slot::kFree;
  if (node->kind != FlowKind::kTimeWait) return Slot::kTaken;
  found = reinterpret_cast<TimeWait*>(reinterpret_cast<char*>(node) - offsetof(TimeWait, flow));
  return may_reuse(*found, env.now()) ? Slot::kReusable : Slot::kTaken;
}

struct Choice {
  std::uint16_t port = 0;
  TimeWait* reused = nullptr;
};

// Chooses a port without a TIME_WAIT if one is found soon, or else one whose TIME_WAIT may be reused (RFC 6191).
Choice choose_port(Env& env, const IpAddress& local, const Endpoint& remote) {
  const auto& config = env.core.config;
  const std::uint32_t offset = port_offset(env.core.secret, local, remote);
  const std::uint32_t count = config.port_last - config.port_first + 1U;
  Choice fallback;
  for (std::uint32_t i = 0; i < count; i++) {
    const std::uint16_t port = ephemeral_port(offset + env.core.next_ephemeral++, config.port_first, config.port_last);
    if (env.core.ports.conflicting({local, port}) != nullptr) continue;
    TimeWait* tw = nullptr;
    const Slot slot = look(env, {local, remote.address, port, remote.port}, tw);
    if (slot == Slot::kFree) return {port, nullptr};
    if (slot == Slot::kReusable && fallback.port == 0) fallback = {port, tw};
    if (fallback.port != 0 && i >= 64) break;
  }
  return fallback;
}

Result<Choice> source_port(Env& env, const Path& path, const Endpoint& local, const Endpoint& remote) {
  std::uint16_t wanted = local.port;
  const Hooks* hooks = env.ctx.hooks;
  if (wanted == 0 && hooks != nullptr && hooks->choose_source_port != nullptr)
    wanted = hooks->choose_source_port(hooks->self, {path.local, 0}, remote);
  if (wanted == 0) {
    const Choice choice = choose_port(env, path.local, remote);
    if (choice.port == 0) return Error::kAddressNotAvailable;
    return choice;
  }
  Choice choice{wanted, nullptr};
  const Slot slot = look(env, {path.local, remote.address, wanted, remote.port}, choice.reused);
  if (slot == Slot::kTaken) return choice.reused != nullptr ? Error::kAddressNotAvailable : Error::kAddressInUse;
  return choice;
}

}  // namespace

std::uint16_t own_mss(std::uint32_t mtu, const Options& options) {
  const std::uint32_t fits = mtu > kHeaders + kLeastMss ? mtu - kHeaders : kLeastMss;
  const std::uint32_t most = options.max_segment != 0 ? options.max_segment : 0xffffU;
  return static_cast<std::uint16_t>(std::min({fits, std::max<std::uint32_t>(most, kLeastMss), 0xffffU}));
}

void update_mss(Tcb& tcb) {
  const std::uint32_t option_bytes = tcb.has(kTimestamps) ? kTimestampsBytes : 0;
  const std::uint32_t most = std::max(std::min(tcb.peer_mss, tcb.own_mss), kLeastMss);
  tcb.mss = static_cast<std::uint16_t>(std::max<std::uint32_t>(most - option_bytes, kLeastMss - kTimestampsBytes));
}

// A path MTU that a router has reported (RFC 1191) stays valid beside it.
void follow_mtu(Env& env, std::uint16_t port, std::uint32_t before, std::uint32_t mtu) {
  env.core.tcbs.for_each([&](Tcb& tcb) {
    if (tcb.path.port != port || !tcb.has(kInFlowTable)) return;
    env.core.current = &tcb;
    const std::uint16_t fits = own_mss(mtu, tcb.options);
    const bool narrower = tcb.own_mss < own_mss(before, tcb.options);
    tcb.own_mss = narrower ? std::min(tcb.own_mss, fits) : fits;
    const auto of_packet = static_cast<std::uint16_t>(std::min<std::uint32_t>(mtu, 0xffff));
    tcb.path.mtu = narrower ? std::min(tcb.path.mtu, of_packet) : of_packet;
    if (!synchronized(tcb.state)) return;
    update_mss(tcb);
    tcb.congestion.set_mss(tcb.mss);
  });
}

void apply_options(Env& env, Tcb& tcb) {
  tcb.path.tos = tcb.options.tos;
  tcb.path.ttl = tcb.options.ttl;
  if (synchronized(tcb.state)) {
    tcb.rcv_limit = tcb.options.receive_buffer != 0 ? initial_receive_limit(env, tcb) : tcb.rcv_limit;
    arm_idle(env, tcb);
  }
}

Tcb* make_connection(Env& env, const Path& path, std::uint16_t local_port, std::uint16_t remote_port,
                     const Options& options) {
  Tcb* tcb = env.core.memory.refuses_connections() ? nullptr : env.core.tcbs.allocate();
  if (tcb == nullptr) return nullptr;
  env.core.current = tcb;
  const auto& config = env.core.config;
  tcb->event.source = EventSource::kTcp;
  tcb->path = path;
  tcb->options = options;
  if (config.timestamps) tcb->set(kTimestamps);
  if (config.sack) tcb->set(kSackPermitted);
  if (config.window_scaling) tcb->set(kWindowScaling);
  tcb->rcv_scale = config.window_scaling ? window_scale_for(largest_window(config, options)) : 0;
  tcb->rcv_limit = initial_receive_limit(env, *tcb);
  tcb->own_mss = own_mss(path.mtu, options);
  tcb->rcv_mss = std::min(tcb->own_mss, kDefaultMss);
  apply_options(env, *tcb);
  const Endpoint local{path.local, local_port}, remote{path.remote, remote_port};
  tcb->seq_base = initial_sequence(env.core.secret, local, remote, env.now()) + 1;
  tcb->ts_offset = timestamp_offset(env.core.secret, local, remote);
  tcb->last_received = env.now();
  tcb->progress_ms = tcb->last_sent_ms = milliseconds_of(env.now());
  tcb->rcv_round = microseconds_of(env.now());
  env.core.flows.insert(env.core.memory, tcb->flow, {path.local, path.remote, local_port, remote_port});
  tcb->set(kInFlowTable);
  steer_connection(env, *tcb);
  return tcb;
}

void begin_above(Tcb& tcb, SeqNum last) {
  const SeqNum floor = last + kReuseStep;
  if (before(tcb.seq_base, floor)) tcb.seq_base = floor;
}

void establish(Env& env, Tcb& tcb, const Segment& s) {
  set_state(env, tcb, State::kEstablished, Why::kSegment);
  tcb.clear(kSynOwed);  // a SYN that was to be sent again has been answered
  (void)take_sample(env, tcb, s);
  tcb.rtt.reset_backoff();
  tcb.scoreboard.start(tcb.seq_of(0), tcb.has(kSackPermitted));
  tcb.usage_end = tcb.small_end = tcb.seq_of(0);
  tcb.congestion.start(tcb.options.congestion, tcb.mss, env.core.config.initial_window);
  if (tcb.has(kSynLost)) {
    tcb.congestion.on_syn_lost();
    if (!tcb.rtt.has_sample()) tcb.rtt.on_handshake_without_sample();
  }
  tcb.quick_acks = kQuickAcks;
  tcb.attempts = 0;
  tcb.soft_error = Error::kNone;
  tcb.rcv_round = microseconds_of(env.now());
  tcb.progress_ms = tcb.last_sent_ms = tcb.last_data_ms = milliseconds_of(env.now());
  disarm(tcb, Timer::kRetransmit);
  arm_idle(env, tcb);
  if (!tcb.has(kFinQueued)) return;
  set_state(env, tcb, State::kFinWait1, Why::kUser);  // shut down while two SYNs crossed
  tcb.set(kTryOutput);
  touch(env, tcb);
}

Result<Endpoint> choose_endpoint(Env& env, const IpAddress& local, const Endpoint& remote) {
  Path path;
  const auto route = env.core.network.resolve(local, remote.address, path);
  if (!route.ok()) return route.error();
  const auto choice = source_port(env, path, {local, 0}, remote);
  if (!choice.ok()) return choice.error();
  return Endpoint{path.local, choice->port};
}

Result<Tcb*> connect(Env& env, const Endpoint& local, const Endpoint& remote, const Options& options, void* user) {
  if (remote.address.is_any() || remote.address.is_multicast()) return Error::kNoRoute;
  if (remote.port == 0) return Error::kRefused;  // nobody listens there
  Path path;
  const auto route = env.core.network.resolve(local.address, remote.address, path);
  if (!route.ok()) return route.error();
  if (path.neighbour == Path::kGroup) return Error::kNetUnreachable;  // a subnet's broadcast address
  if (leads_nowhere(env.ctx, path)) return Error::kNetUnreachable;
  const auto choice = source_port(env, path, local, remote);
  if (!choice.ok()) return choice.error();
  std::optional<SeqNum> last;
  if (choice->reused != nullptr) {
    last = choice->reused->snd_nxt;
    env.count().tcp_time_wait_reused++;
    end_time_wait(env, *choice->reused);
  }
  Tcb* tcb = make_connection(env, path, choice->port, remote.port, options);
  if (tcb == nullptr) return Error::kNoMemory;
  if (last) begin_above(*tcb, *last);
  tcb->event.user = user;
  env.count().tcp_active_opens++;
  set_state(env, *tcb, State::kSynSent, Why::kOpen);
  tcb->probe.start(tcb->seq_base, env.now());
  open_output(env, *tcb);
  arm_retransmit(env, *tcb);
  return tcb;
}

}  // namespace bypass::tcp
