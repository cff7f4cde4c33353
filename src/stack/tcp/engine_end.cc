// The calls of engine.h that end connections.
#include "stack/tcp/engine.h"

#include "stack/tcp/changing.h"
#include "stack/tcp/core.h"
#include "stack/tcp/open/accept.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/transmit.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {

void Engine::shutdown_send(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  queue_fin(env, tcb);
}

void Engine::shutdown_receive(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  tcb.set(kReceiveShut);
  env.post(tcb, kEventEof | kEventReadable);
}

void Engine::close(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  impl_->events.remove(tcb.event);
  tcb.event.user = nullptr;
  tcb.set(kOrphan);
  if (tcb.state == State::kClosed || tcb.state == State::kTimeWait) return destroy(env, tcb);
  if (tcb.state == State::kSynSent) return finish(env, tcb, Error::kNone, Why::kUser);
  if (tcb.rx_bytes != 0) {  // RFC 2525 §2.17: the peer must not believe that these were read
    send_reset(env, tcb);
    return finish(env, tcb, Error::kNone, Why::kUser);
  }
  tcb.clear(kHoldMore);
  tcb.options.cork = false;
  if (!keep_orphan(env, tcb)) return;
  queue_fin(env, tcb);
  if (tcb.state != State::kFinWait2) return;
  if (tcb.options.linger2_s >= 0) return arm_idle(env, tcb);
  send_reset(env, tcb);  // TCP_LINGER2 below 0 (tcp_close of Linux)
  finish(env, tcb, Error::kNone, Why::kUser);
}

void Engine::abort(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  impl_->events.remove(tcb.event);
  tcb.event.user = nullptr;
  tcb.set(kOrphan);
  if (tcb.state == State::kClosed || tcb.state == State::kTimeWait) return destroy(env, tcb);
  // tcp_disconnect() of Linux: if both directions have ended and only the ACK of our FIN is missing, the peer needs no
  // RST.
  const bool ended = (tcb.state == State::kClosing || tcb.state == State::kLastAck) && tcb.unsent() == 0;
  if (tcb.state != State::kSynSent && !ended) send_reset(env, tcb);
  finish(env, tcb, Error::kAborted, Why::kUser);
}

Engine::Orphans Engine::orphans() const {
  Orphans found;
  impl_->tcbs.for_each([&](const Tcb& tcb) {
    if (!tcb.orphan() || tcb.has(kHalfOpen | kDeferred)) return;
    const bool delivered = tcb.overlay != nullptr && tcb.overlay->delivered;
    found.half_closed += tcb.state == State::kFinWait2 || (delivered && !tcb.overlay->peer_ended);
    if (!sends(tcb.state) || delivered) return;
    (tcb.ring.empty() ? found.closing : found.with_data)++;
  });
  return found;
}

void Engine::abort_orphans(Context& ctx) {
  impl_->tcbs.for_each([&](Tcb& tcb) {
    // A closed connection under an overlay may still be ESTABLISHED.
    const bool peer_may_send = receives(tcb.state);
    const bool lacks_bytes = sends(tcb.state) && !tcb.ring.empty();
    if (!tcb.orphan() || tcb.has(kHalfOpen | kDeferred) || (!peer_may_send && !lacks_bytes)) return;
    const Changing changing(*impl_, &tcb);
    Env env{*impl_, ctx};
    send_reset(env, tcb);
    finish(env, tcb, Error::kAborted, Why::kUser);
  });
}

}  // namespace bypass::tcp
