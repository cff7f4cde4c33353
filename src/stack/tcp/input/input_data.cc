// Text and FIN: the receive queue, reassembly, and when to acknowledge (RFC 9293 §3.8.6.3, RFC 5681 §4.2).
#include <algorithm>
#include <utility>

#include "stack/copy.h"
#include "stack/frame/arrival.h"
#include "stack/memory/arena_packet.h"
#include "stack/tcp/input/input.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/open/accept.h"
#include "stack/tcp/output/output.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/state.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

constexpr std::size_t kArenaBlock = 4096;  // a block that gathers small segments
constexpr std::uint32_t kFewestFrames = 64;
// A frame is tiny if it fills less than this part of its buffer. Only few tiny frames may use the ports' buffers.
constexpr std::uint32_t kTiny = 8;

// --- Frames and the memory they hold

bool in_arena(const Packet& frame) {
  return (frame.flags & kInArena) != 0;
}

bool is_scarce(Env& env, const Packet& frame) {
  return env.ctx.queue(frame.port).scarce();
}

// Frames belong to the port. If readers hold too many of them, or many for few bytes, the payload moves to the arena.
bool should_copy(Env& env, const Tcb& tcb, const Packet& frame) {
  if (in_arena(frame)) return (frame.flags & kInReserve) != 0;
  const std::uint32_t size = truesize(frame);
  if (tcb.rx_truesize + size > 2 * tcb.rcv_limit) return true;
  const bool tiny = frame.payload_len < size / kTiny;
  const std::uint32_t budget = tiny ? env.core.frame_budget / kTiny : env.core.frame_budget;
  return env.core.held_frames >= budget || is_scarce(env, frame);
}

void copy_out(const Packet& frame, std::byte* to) {
  std::uint32_t skip = frame.offset, left = frame.payload_len;
  for (const Packet* p = &frame; p != nullptr && left != 0; p = p->next_segment) {
    const std::uint32_t from = std::min(skip, p->len);
    const std::uint32_t n = std::min(p->len - from, left);
    if (n != 0) copy_bytes(to, p->data + from, n);
    to += n;
    left -= n;
    skip -= from;
  }
}

// Copies the payload into `copy`, an arena packet with room for it, or null.
Packet* with_payload(Packet* copy, const Packet& frame) {
  if (copy == nullptr) return nullptr;
  copy_out(frame, copy->data);
  copy->len = copy->frame_len = copy->payload_len = frame.payload_len;
  copy->seq = frame.seq;
  set_arrival(*copy, arrival(frame));
  return copy;
}

// Copies the payload to an arena packet with at least that much room; null without memory.
Packet* to_arena(Env& env, const Packet& frame, std::size_t room) {
  const std::size_t bytes = std::max<std::size_t>(frame.payload_len, room);
  return with_payload(allocate_received(env.core.memory, bytes), frame);
}

// The same, but may use the last of the memory that is kept back from bulk bytes.
Packet* to_kept_back(Env& env, const Packet& frame) {
  return with_payload(allocate_arena_packet(env.core.memory, 0, frame.payload_len), frame);
}

bool append_to_tail(Tcb& tcb, const Packet& frame) {
  Packet* tail = tcb.rx_tail;
  if (tail == nullptr || !in_arena(*tail) || tail->next_segment != nullptr) return false;
  // Only if the payload ends the packet: nothing was trimmed off.
  if (tail->offset + tail->payload_len != tail->len || tail->tailroom() < frame.payload_len) return false;
  copy_out(frame, tail->data + tail->len);
  tail->len += frame.payload_len;
  tail->frame_len += frame.payload_len;
  tail->payload_len += frame.payload_len;
  set_arrival(*tail, arrival(frame));  // the arrival of the last one counts, as in tcp_try_coalesce() of Linux
  return true;
}

// The connection keeps the frame, in its queue or for later, until release_held().
void hold(Env& env, Tcb& tcb, const Packet& frame) {
  tcb.rx_truesize += truesize(frame);
  if (!in_arena(frame)) env.core.held_frames++;
}

void link_tail(Tcb& tcb, Packet* frame) {
  frame->queue_next = nullptr;
  (tcb.rx_tail != nullptr ? tcb.rx_tail->queue_next : tcb.rx_head) = frame;
  tcb.rx_tail = frame;
}

void count_in_order(Tcb& tcb, std::uint32_t bytes) {
  tcb.rx_bytes += bytes;
  tcb.received += bytes;
  tcb.rcv_nxt += bytes;
}

// Text after the peer's FIN belongs to nobody (tcp_fin() of Linux): no ACK may report it, and it uses no memory.
[[gnu::noinline, gnu::cold]] void drop_behind_fin(Env& env, Tcb& tcb) {
  env.count().drop_tcp_out_of_window += tcb.reassembly.frames();
  release_held(env, tcb, tcb.reassembly.clear(env.core.memory));
  tcb.clear(kHoles);
}

// Drops what came ahead of a hole; it comes again: RFC 2018 §8.
void give_up_out_of_order(Env& env, Tcb& tcb) {
  env.count().drop_tcp_memory += tcb.reassembly.frames();
  release_held(env, tcb, tcb.reassembly.clear(env.core.memory));
  tcb.clear(kHoles);
}

[[gnu::noinline, gnu::cold]] void end_low_memory_if_over(Env& env, Tcb& tcb, const Packet& frame) {
  const bool frames = !in_arena(frame) && env.core.held_frames < env.core.frame_budget / 2 && !is_scarce(env, frame);
  frames ? end_need(env, tcb) : end_low_memory_if_over(env, tcb);
}

// There is no memory for a copy. A program with nothing else to read still gets the segment, from the memory kept back:
// it may be the segment that a reader waits for. The memory is held by what that reader will release, and by what both
// ends have sent without an ACK. Returns the frame itself or its replacement; null: there is neither.
//
// Later segments would be dropped, and would come again one by one as the sender's timer runs out. So the sender is
// told that there is room for one segment or none, although more was promised (RFC 9293 §3.8.6 advises against this;
// Linux does the same).
[[gnu::noinline, gnu::cold]] Packet* keep_at_low_memory(Env& env, Tcb& tcb, Packet* frame) {
  tcb.set(kLowMemory);
  ack_soon(env, tcb);
  if (tcb.rx_head != nullptr) return nullptr;
  const Memory& memory = env.core.memory;
  const bool is_copy = in_arena(*frame);  // the copy was made for a family
  if (is_copy ? !memory.is_short() : !is_scarce(env, *frame)) return frame;
  if (!is_copy && memory.has_kept(arena_packet_size(frame->payload_len))) {
    if (Packet* copy = to_kept_back(env, *frame)) return copy;
  }
  if (tcb.reassembly.empty()) return nullptr;
  const bool returns_frames = is_copy || tcb.reassembly.port_frames() != 0;
  give_up_out_of_order(env, tcb);
  return returns_frames ? frame : to_kept_back(env, *frame);  // as much as has just been given back
}

// Moves the payload to the arena. False: no memory.
bool enqueue_copy(Env& env, Tcb& tcb, Packet* frame) {
  if (append_to_tail(tcb, *frame)) return env.ctx.release(frame), true;
  Packet* kept = to_arena(env, *frame, kArenaBlock - sizeof(Packet));
  if (kept == nullptr) kept = keep_at_low_memory(env, tcb, frame);
  if (kept == nullptr) return false;
  kept->flags &= static_cast<std::uint16_t>(~kInReserve);
  hold(env, tcb, *kept);
  link_tail(tcb, kept);
  if (kept != frame) env.ctx.release(frame);
  return true;
}

// Queues the frame and takes it over. False: no memory for a copy; the frame stays the caller's.
bool enqueue(Env& env, Tcb& tcb, Packet* frame) {
  const std::uint32_t bytes = frame->payload_len;
  if (tcb.has(kLowMemory)) [[unlikely]]
    end_low_memory_if_over(env, tcb, *frame);
  if (should_copy(env, tcb, *frame)) [[unlikely]] {
    if (!enqueue_copy(env, tcb, frame)) return false;
  } else {
    hold(env, tcb, *frame);
    link_tail(tcb, frame);
  }
  count_in_order(tcb, bytes);
  return true;
}

Packet* as_queued(const Env& env, Segment& s) {
  Packet* frame = s.packet;
  settle_arrival(*frame, env.now());
  frame->seq = s.seq.v;
  frame->offset = s.offset;
  frame->payload_len = s.payload;
  return frame;
}

// --- When to acknowledge

void note_size(Tcb& tcb, const Segment& s) {
  // A large receive is many segments. The size of each is known, or at most our MSS.
  const bool large = (s.packet->flags & kRxLro) != 0 && s.packet->tso_mss != 0;
  const std::uint32_t one = large ? s.packet->tso_mss : s.payload;
  if (one > tcb.rcv_mss) tcb.rcv_mss = static_cast<std::uint16_t>(std::min<std::uint32_t>(one, tcb.own_mss));
}

void ack_text(Env& env, Tcb& tcb) {
  const std::uint32_t owed = distance(tcb.last_ack_sent, tcb.rcv_nxt);
  if (tcb.quick_acks != 0 || tcb.options.quick_ack || owed >= 2U * tcb.rcv_mss) {
    if (tcb.quick_acks != 0) tcb.quick_acks--;
    return ack_soon(env, tcb);
  }
  if (tcb.has(kAckDelayed)) return;
  tcb.set(kAckDelayed);
  arm(env, tcb, Timer::kDelayedAck, env.now() + env.core.config.delayed_ack);
}

// --- Out of order

Reassembly::Limits hole_limits(const Tcb& tcb) {
  return {tcb.rcv_wnd(), std::max(kFewestFrames, tcb.rcv_limit / 1024)};
}

void keep_for_later(Env& env, Tcb& tcb, Packet* frame) {
  if (should_copy(env, tcb, *frame)) {
    Packet* copy = to_arena(env, *frame, 0);
    env.ctx.release(frame);
    if (copy == nullptr) {
      env.count().drop_tcp_memory++;
      return;
    }
    frame = copy;
  }
  hold(env, tcb, *frame);
  const auto inserted = tcb.reassembly.insert(env.core.memory, frame, hole_limits(tcb));
  if (inserted.outcome == Reassembly::Outcome::kDuplicate) env.count().drop_tcp_duplicate++;
  if (inserted.outcome == Reassembly::Outcome::kRefused) env.count().drop_tcp_reassembly++;
  if (inserted.outcome == Reassembly::Outcome::kNoMemory) env.count().drop_tcp_memory++;
  release_held(env, tcb, inserted.release);
  if (!tcb.reassembly.empty()) tcb.set(kHoles);
}

// Returns what takes the frame's place: its payload in the arena, or the frame itself.
Packet* moved(Env& env, Tcb& tcb, Packet* frame) {
  if (in_arena(*frame) || !env.ctx.has_port_of(*frame)) return frame;
  Packet* copy = to_arena(env, *frame, 0);
  if (copy == nullptr) return frame;
  hold(env, tcb, *copy);
  frame->queue_next = nullptr;
  release_held(env, tcb, frame);
  return copy;
}

std::size_t move_in_order(Env& env, Tcb& tcb) {
  std::size_t stayed = 0;
  Packet* list = std::exchange(tcb.rx_head, nullptr);
  tcb.rx_tail = nullptr;
  while (list != nullptr) {
    Packet* next = list->queue_next;
    const bool sifted = tcb.overlay != nullptr && tcb.overlay->sifted == list;
    link_tail(tcb, moved(env, tcb, list));
    if (sifted) tcb.overlay->sifted = tcb.rx_tail;
    if (!in_arena(*tcb.rx_tail)) stayed++;
    list = next;
  }
  return stayed;
}

// A hole was filled: the data after it is now in order.
[[gnu::noinline, gnu::cold]] void take_ready(Env& env, Tcb& tcb, bool reported) {
  auto ready = tcb.reassembly.advance(env.core.memory, tcb.rcv_nxt, reported);
  release_held(env, tcb, ready.release);
  for (Packet* frame = ready.frames; frame != nullptr;) {
    Packet* next = frame->queue_next;
    link_tail(tcb, frame);
    count_in_order(tcb, frame->payload_len);
    frame = next;
  }
  if (after(tcb.rcv_nxt, tcb.rcv_adv)) tcb.rcv_adv = tcb.rcv_nxt;  // rcv_adv had moved back
  if (tcb.reassembly.empty()) tcb.clear(kHoles);
}

}  // namespace

std::uint32_t truesize(const Packet& frame) {
  std::uint32_t size = 0;
  for (const Packet* p = &frame; p != nullptr; p = p->next_segment)
    size += p->capacity + static_cast<std::uint32_t>(sizeof(Packet));
  return size;
}

void release_held(Env& env, Tcb& tcb, Packet* list) {
  while (list != nullptr) {
    Packet* next = list->queue_next;
    tcb.rx_truesize -= truesize(*list);
    if (!in_arena(*list)) env.core.held_frames--;
    env.ctx.release(list);
    list = next;
  }
}

std::size_t move_to_arena(Env& env, Tcb& tcb, bool being_read) {
  std::size_t stayed = 0;
  if (being_read) {
    for (const Packet* p = tcb.rx_head; p != nullptr; p = p->queue_next) stayed += in_arena(*p) ? 0 : 1;
  } else {
    stayed = move_in_order(env, tcb);
  }
  tcb.reassembly.exchange_frames([&](Packet* frame) { return moved(env, tcb, frame); });
  return stayed + tcb.reassembly.port_frames();
}

void ack_soon(Env& env, Tcb& tcb) {
  tcb.set(kAckNow);
  touch(env, tcb);
}

void accept_in_order(Env& env, Tcb& tcb, Segment& s) {
  note_size(tcb, s);
  if (!enqueue(env, tcb, as_queued(env, s))) {
    env.count().drop_tcp_memory++;
    return;
  }
  s.packet = nullptr;
  if (!tcb.has(kAccepting)) tcb.last_data_ms = milliseconds_of(env.now());
  ack_text(env, tcb);
  env.post(tcb, kEventReadable);
}

void accept_text(Env& env, Tcb& tcb, Segment& s) {
  const SeqNum end = s.seq + s.payload;
  // Neither text nor FIN beyond the right edge counts (RFC 9293 §3.10.7.4: trimmed to fit the window).
  if (after(end, tcb.rcv_adv) && tcb.has(kLowMemory)) end_low_memory_if_over(env, tcb, *s.packet);
  if (after(end, tcb.rcv_adv)) {
    env.count().drop_tcp_out_of_window++;
    ack_soon(env, tcb);
    s.flags &= static_cast<std::uint8_t>(~kFin);
    if (before_or_at(tcb.rcv_adv, s.seq)) return;
    s.payload = distance(s.seq, tcb.rcv_adv);
  }
  const bool begins_old = before(s.seq, tcb.rcv_nxt);
  if (begins_old) {
    const SeqNum duplicate_end = earlier(s.seq + s.payload, tcb.rcv_nxt);
    tcb.reassembly.note_duplicate(s.seq, duplicate_end);
    ack_soon(env, tcb);
    const std::uint32_t cut = distance(s.seq, duplicate_end);
    s.seq += cut;
    s.offset += cut;
    s.payload -= cut;
    if (s.payload == 0) return;
  }
  if (s.seq != tcb.rcv_nxt) {
    ack_soon(env, tcb);  // RFC 5681 §4.2: at once, so that the sender sees the hole
    note_size(tcb, s);
    keep_for_later(env, tcb, as_queued(env, s));
    s.packet = nullptr;
    return;
  }
  const bool fills_hole = tcb.has(kHoles);
  accept_in_order(env, tcb, s);
  if (!fills_hole || s.packet != nullptr) return;
  if (tcb.has(kHoles)) take_ready(env, tcb, begins_old);  // unless the hole's data was dropped
  ack_soon(env, tcb);
}

void take_fin(Env& env, Tcb& tcb) {
  tcb.set(kFinReceived);
  tcb.rcv_nxt += 1;
  if (after(tcb.rcv_nxt, tcb.rcv_adv)) tcb.rcv_adv = tcb.rcv_nxt;
  if (tcb.has(kHoles)) drop_behind_fin(env, tcb);
  ack_soon(env, tcb);
  env.post(tcb, kEventEof | kEventReadable);
  switch (tcb.state) {
    case State::kEstablished:
      return set_state(env, tcb, State::kCloseWait, Why::kSegment);
    case State::kFinWait1:
      return set_state(env, tcb, State::kClosing, Why::kSegment);
    case State::kFinWait2:
      set_state(env, tcb, State::kTimeWait, Why::kSegment);
      return leave_for_time_wait(env, tcb);
    default:
      return;
  }
}

}  // namespace bypass::tcp
