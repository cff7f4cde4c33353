// ICMP errors about a connection (RFC 5927): believed only with a sequence number in flight. A hard error ends an
// attempt to connect; an unreachable peer ends a request at a listener. An established connection remembers the error
// as the cause of a later timeout (RFC 5461 §4.1).
#include "stack/tcp/icmp.h"

#include <algorithm>

#include "stack/frame/wire.h"
#include "stack/tcp/open/open.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {
namespace {

constexpr std::uint32_t kLeastMtu = 552;  // as Linux's min_pmtu: a forged smaller one would only cost us

bool in_flight_now(const Tcb& tcb, std::uint32_t sequence) {
  const SeqNum s{sequence};
  if (!synchronized(tcb.state)) return s == tcb.seq_base - 1;
  return after_or_at(s, tcb.seq_of(tcb.snd_una)) && before(s, tcb.seq_of(tcb.snd_nxt));
}

// RFC 1191 §6.3: segments get smaller, and what was too large is sent again at once.
void shrink_path(Env& env, Tcb& tcb, std::uint32_t mtu) {
  mtu = std::max(mtu, kLeastMtu);
  if (mtu >= tcb.path.mtu) return;
  tcb.path.mtu = static_cast<std::uint16_t>(mtu);
  tcb.own_mss = static_cast<std::uint16_t>(std::min<std::uint32_t>(tcb.own_mss, mtu - 40));
  const std::uint16_t before_mss = tcb.mss;
  update_mss(tcb);
  if (!synchronized(tcb.state) || tcb.mss >= before_mss) return;
  tcb.congestion.set_mss(tcb.mss);
  if (tcb.in_flight() == 0) return;
  tcb.probe.cancel();
  tcb.scoreboard.on_timeout(env.core.memory, tcb.seq_of(tcb.snd_nxt));
  output(env, tcb);
}

// A request at a listener ends if its peer cannot be reached. It stays if a port or a filter is said to refuse. As
// tcp_v4_err() of Linux (TCP_NEW_SYN_RECV).
bool ends_request(const IcmpError& error) {
  constexpr std::uint8_t kNet = 0, kHost = 1;  // RFC 792's codes
  if (error.type == wire::kIcmpUnreachable) return error.code == kNet || error.code == kHost;
  return error.type == wire::kIcmpTimeExceeded || error.type == wire::kIcmpParameterProblem;
}

bool ends_attempt(const Tcb& tcb, const IcmpError& error) {
  if (synchronized(tcb.state)) return false;
  return tcb.has(kPassive) ? ends_request(error) : error.hard;
}

}  // namespace

void take_icmp(Env& env, const IcmpError& error) {
  const FlowKey key{error.local.address, error.remote.address, error.local.port, error.remote.port};
  FlowNode* node = env.core.flows.find(key, env.core.flows.hash(key));
  if (node == nullptr || node->kind != FlowKind::kTcb) return;
  Tcb& tcb = *reinterpret_cast<Tcb*>(reinterpret_cast<char*>(node) - offsetof(Tcb, flow));
  if (!in_flight_now(tcb, error.sequence)) return;
  env.core.current = &tcb;
  if (error.error == Error::kMessageTooLarge) return shrink_path(env, tcb, error.mtu);
  if (ends_attempt(tcb, error)) return finish(env, tcb, error.error, Why::kReset);
  tcb.soft_error = error.error;
}

}  // namespace bypass::tcp
