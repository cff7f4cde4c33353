// The calls of engine.h that send and receive.
#include "stack/tcp/engine.h"

#include <algorithm>

#include "stack/tcp/changing.h"
#include "stack/tcp/core.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/reassembly.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/output/memory_wait.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/state.h"

namespace bypass::tcp {

// --- Sending

std::size_t Engine::send_room(const Tcb& tcb) const {
  if (tcb.has(kFinQueued) || (tcb.state != State::kEstablished && tcb.state != State::kCloseWait)) return 0;
  return std::min(tcb.ring.room(send_limit(*impl_, tcb), impl_->memory), admitted_unsent(tcb));
}

std::size_t Engine::writable_room(const Tcb& tcb) const {
  if (tcb.has(kFinQueued) || (tcb.state != State::kEstablished && tcb.state != State::kCloseWait)) return 0;
  return may_tell_of_room(tcb) ? tcb.ring.room(send_limit(*impl_, tcb), impl_->memory) : 0;
}

std::uint64_t Engine::memory_waits() const {
  return impl_->counters.tcp_memory_waits;
}

bool Engine::waits_for_memory() const {
  return impl_->starved.head != nullptr;
}

void Engine::want_room(Context& ctx, Tcb& tcb) {
  const Changing changing(*impl_, &tcb);
  tcb.set(kWantWritable);
  if (!tcb.has(kInFlowTable)) return;  // the connection has ended: there is nothing to wait for
  Env env{*impl_, ctx};
  note_refused(env, tcb);
  // Otherwise an acknowledgement will come.
  if (tcb.ring.empty() && !SendRing::may_begin(impl_->memory)) wait_for_memory(*impl_, tcb);
}

namespace {

Room first_of(const Room& room, std::size_t bytes) {
  const std::size_t first = std::min(bytes, room.part[0].size());
  return {{room.part[0].first(first), room.part[1].first(std::min(bytes - first, room.part[1].size()))}};
}

}  // namespace

Result<Room> Engine::reserve(Tcb& tcb, std::size_t want) {
  // the caller may have bytes to report first, so it calls take_error() itself
  if (tcb.error != Error::kNone) return tcb.error;
  if (tcb.has(kFinQueued) || tcb.state == State::kClosed || tcb.state == State::kTimeWait) return Error::kBrokenPipe;
  if (!synchronized(tcb.state)) return Error::kWouldBlock;
  const Changing changing(*impl_, &tcb);
  const std::uint32_t limit = send_limit(*impl_, tcb);
  const std::size_t room = tcb.ring.room(limit);
  if (room < limit / 3 + want) tcb.set(kWantWritable);
  const std::size_t admitted = admitted_unsent(tcb);
  if (admitted < want) {
    tcb.set(kWantWritable);
    if (admitted == 0) return Error::kWouldBlock;
  }
  // reserves everything at once: the block may not grow later
  auto reserved = tcb.ring.reserve(impl_->memory, want, limit);
  if (reserved.ok() && reserved->size() > admitted) [[unlikely]]
    *reserved = first_of(*reserved, admitted);
  const bool dry = reserved.error() == Error::kNoMemory;
  // This applies also if the limit leaves room but the block may not move, because frames still refer to it.
  if (dry || reserved.error() == Error::kWouldBlock) tcb.set(kWantWritable);
  if (!dry) return reserved;
  impl_->counters.tcp_memory_waits++;
  wait_for_memory(*impl_, tcb);
  return Error::kWouldBlock;
}

void Engine::commit(Context& ctx, Tcb& tcb, std::size_t bytes, bool more) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  const bool alive = sends(tcb.state) && !tcb.has(kFinQueued);
  tcb.ring.commit(impl_->memory, alive ? bytes : 0);
  if (!alive) return reap(env, tcb);
  if (bytes != 0) {
    tcb.clear(kForceOutput | kMore | kHoldMore);  // these were set by earlier writes
    if (more) tcb.set(kMore | kHoldMore);
  }
  if (tcb.overlay == nullptr) output(env, tcb);
}

std::size_t Engine::unacknowledged(const Tcb& tcb) const {
  // Bytes that were lost with the connection stay unacknowledged.
  if (tcb.state == State::kClosed && tcb.overlay == nullptr)
    return static_cast<std::size_t>(tcb.ring.end() - std::min(tcb.ring.end(), tcb.snd_una));
  return tcb.ring.size();
}

// --- Receiving

std::size_t Engine::readable(const Tcb& tcb) const {
  return tcb.rx_bytes;
}

std::size_t Engine::peek(const Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes) const {
  std::size_t count = 0, seen = 0;
  for (const Packet* frame = tcb.rx_head; frame != nullptr; frame = frame->queue_next) {
    std::uint32_t skip = frame->offset, left = frame->payload_len;
    for (const Packet* p = frame; p != nullptr && left != 0; p = p->next_segment) {
      const std::uint32_t from = std::min(skip, p->len);
      const std::uint32_t n = std::min(p->len - from, left);
      skip -= from;
      left -= n;
      if (n == 0) continue;
      if (count == out.size() || seen >= bytes) return count;
      out[count++] = {p->data + from, n};
      seen += n;
    }
  }
  return count;
}

void Engine::consume(Context& ctx, Tcb& tcb, std::size_t bytes) {
  const Changing changing(*impl_, &tcb);
  Env env{*impl_, ctx};
  std::uint32_t ready = 0;  // bytes of an overlay that TCP's window does not count
  if (tcb.overlay != nullptr) [[unlikely]] {
    ready = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, tcb.overlay->ready));
    tcb.overlay->ready -= ready;
  }
  const auto counted = static_cast<std::uint32_t>(std::min<std::size_t>(bytes - ready, tcb.rx_bytes));
  tcb.rx_bytes -= counted;
  tune_receive_limit(env, tcb, counted);
  for (std::size_t left = ready + counted; left != 0;) {
    Packet* frame = tcb.rx_head;
    if (left < frame->payload_len) {
      trim_front(*frame, static_cast<std::uint32_t>(left));
      break;
    }
    left -= frame->payload_len;
    tcb.rx_head = frame->queue_next;
    if (tcb.rx_head == nullptr) tcb.rx_tail = nullptr;
    if (tcb.overlay != nullptr && tcb.overlay->sifted == frame) tcb.overlay->sifted = nullptr;
    frame->queue_next = nullptr;
    release_held(env, tcb, frame);
  }
  if (receives(tcb.state) && update_due(tcb)) acknowledge(env, tcb);
}

bool Engine::at_eof(const Tcb& tcb) const {
  if (tcb.rx_bytes != 0) return false;
  if (tcb.has(kFinReceived)) return true;
  if (tcb.error != Error::kNone) return false;
  return tcb.has(kReceiveShut) || tcb.state == State::kClosed;
}

std::size_t Engine::move_frames_to_arena(Context& ctx, bool (*being_read)(const void* user)) {
  if (impl_->held_frames == 0) return 0;
  std::size_t stayed = 0;
  Env env{*impl_, ctx};
  impl_->tcbs.for_each([&](Tcb& tcb) {
    const Changing changing(*impl_, &tcb);
    const void* user = tcb.event.user;
    stayed += tcp::move_to_arena(env, tcb, being_read != nullptr && user != nullptr && being_read(user));
  });
  return stayed;
}

}  // namespace bypass::tcp
