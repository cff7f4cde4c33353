#include "stack/tcp/state.h"

#include <atomic>
#include <utility>

#include "stack/tcp/input/input.h"
#include "stack/tcp/open/accept.h"
#include "stack/tcp/output/memory_wait.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/steering.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

constexpr std::uint16_t bit(State s) {
  return static_cast<std::uint16_t>(1U << static_cast<unsigned>(s));
}
template <typename... States>
constexpr std::uint16_t to(States... s) {
  return static_cast<std::uint16_t>((bit(s) | ...));
}

// Rows: the state before. RFC 9293 figure 5; every state but CLOSED may also end at once (RST, abort, timeout).
constexpr std::uint16_t kEdges[] = {
    to(State::kSynSent, State::kSynReceived),                                 // CLOSED
    to(State::kClosed),                                                       // LISTEN: a Listener, never a Tcb
    to(State::kSynReceived, State::kEstablished, State::kClosed),             // SYN-SENT
    to(State::kEstablished, State::kFinWait1, State::kClosed),                // SYN-RECEIVED
    to(State::kFinWait1, State::kCloseWait, State::kClosed),                  // ESTABLISHED
    to(State::kFinWait2, State::kClosing, State::kTimeWait, State::kClosed),  // FIN-WAIT-1
    to(State::kTimeWait, State::kClosed),                                     // FIN-WAIT-2
    to(State::kLastAck, State::kClosed),                                      // CLOSE-WAIT
    to(State::kTimeWait, State::kClosed),                                     // CLOSING
    to(State::kClosed),                                                       // LAST-ACK
    to(State::kClosed),                                                       // TIME-WAIT
};
static_assert(std::size(kEdges) == static_cast<std::size_t>(State::kTimeWait) + 1);

constexpr const char* kNames[] = {"CLOSED",     "LISTEN",     "SYN-SENT", "SYN-RECEIVED", "ESTABLISHED", "FIN-WAIT-1",
                                  "FIN-WAIT-2", "CLOSE-WAIT", "CLOSING",  "LAST-ACK",     "TIME-WAIT"};
static_assert(std::size(kNames) == std::size(kEdges));

bool linked(const Tcb& tcb) {
  return tcb.has(kInBurst | kBlocked | kPinned | kAccepting);
}

void release_receive_queue(Env& env, Tcb& tcb) {
  // Off the queue first: if a death comes in between, nobody must give them back a second time.
  Packet* list = std::exchange(tcb.rx_head, nullptr);
  tcb.rx_tail = nullptr;
  tcb.rx_bytes = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  release_held(env, tcb, list);
}

}  // namespace

// tcp_out_of_resources() of Linux: bytes that wait use memory.
bool is_one_too_many(const Env& env, const Tcb& tcb) {
  const auto since_progress = milliseconds_since(tcb.progress_ms, milliseconds_of(env.now()));
  const bool stuck = since_progress > 2 * env.core.rto_bounds.max;
  if ((std::uint64_t{env.core.orphans} << (stuck ? 1 : 0)) > env.core.config.max_orphans) return true;
  return !tcb.ring.empty() && env.core.memory.refuses_connections();
}

void drop_orphan(Env& env, Tcb& tcb) {
  env.count().tcp_orphans_dropped++;
  send_reset(env, tcb);
  finish(env, tcb, Error::kAborted, Why::kUser);
}

bool keep_orphan(Env& env, Tcb& tcb) {
  tcb.counted = true;
  env.core.orphans++;
  if (!is_one_too_many(env, tcb)) return true;
  drop_orphan(env, tcb);
  return false;
}

bool legal(State from, State to_state) {
  return (kEdges[static_cast<std::size_t>(from)] & bit(to_state)) != 0;
}

const char* name_of(State state) {
  return kNames[static_cast<std::size_t>(state)];
}

void set_state(Env& env, Tcb& tcb, State next, Why why) {
  if (!legal(tcb.state, next)) __builtin_trap();  // our own bookkeeping is wrong; no peer can cause it
  if (next == State::kEstablished) env.count().tcp_established++;
  if (next == State::kClosed && why == Why::kTimer) env.count().tcp_timeouts++;
  tcb.state = next;
  tcb.why = static_cast<std::uint8_t>(why);
}

void detach(Env& env, Tcb& tcb) {
  unsteer_connection(env, tcb);
  stop_waiting(env.core, tcb);
  if (tcb.has(kInFlowTable)) env.core.flows.erase(tcb.flow);
  if (tcb.has(kHalfOpen | kDeferred)) leave_listener(env.core, tcb);
  tcb.clear(kInFlowTable | kSynOwed);
  stop_timers(env, tcb);
  turn_limit(env, tcb, Limit::kIdle);
  tcb.ring.clear(env.core.memory);
  tcb.scoreboard.clear(env.core.memory);
  if (tcb.overlay != nullptr) tcb.overlay->map.clear(env.core.memory);
  release_held(env, tcb, tcb.reassembly.clear(env.core.memory));
}

void finish(Env& env, Tcb& tcb, Error error, Why why) {
  if (tcb.state == State::kClosed) return;
  detach(env, tcb);
  set_state(env, tcb, State::kClosed, why);
  if (tcb.orphan()) return destroy(env, tcb);
  tcb.error = error;
  unsigned events = kEventClosed | kEventReadable | kEventWritable;
  if (error != Error::kNone) events |= kEventError;
  env.post(tcb, static_cast<std::uint16_t>(events));
}

void destroy(Env& env, Tcb& tcb) {
  env.core.events.remove(tcb.event);
  tcb.event.user = nullptr;
  // An overlay has not yet seen what came with the peer's FIN.
  if (tcb.overlay == nullptr) release_receive_queue(env, tcb);
  if (tcb.counted) env.core.orphans--;
  tcb.counted = false;
  tcb.set(kOrphan | kZombie);
  reap(env, tcb);
}

void reap(Env& env, Tcb& tcb) {
  if (!tcb.has(kZombie) || linked(tcb)) return;
  if (tcb.overlay != nullptr) {
    destroy_overlay(env, tcb);
    release_receive_queue(env, tcb);
  }
  if (tcb.ring.busy()) return;
  stop_timers(env, tcb);  // the wheel must hold no Tcb that is freed
  if (env.core.current == &tcb) env.core.current = nullptr;
  env.core.tcbs.free(&tcb);
}

}  // namespace bypass::tcp
