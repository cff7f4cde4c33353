#include "fastpath/link/short_calls.h"

#include <algorithm>

#include "stack/tcp/output/overlay.h"
#include "stack/tcp/tcb.h"

namespace bypass::fastpath {

using tcp::Tcb;

ShortPath ShortCalls::path_of(Tcb& tcb) {
  Framed& framed = FramedTcp::of(tcb);
  if (!owner_.is_owner() || table_.shared().torn || !FramedTcp::is_steady(tcb, framed)) return {};
  PeerLink* const link = table_.find(framed.link);
  if (link == nullptr || link->stage != PeerLink::Stage::kUp || link->end.state() != LinkState::kUp) return {};
  Link* const mover = owner_.mover_of(*link);
  return mover != nullptr ? ShortPath{&tcb, &framed, link, mover} : ShortPath{};
}

ShortCalls::Glance ShortCalls::glance(const ShortPath& u) {
  found_count_ = u.mover->poll(found_);
  if (found_count_ == 0) return u.mover->state() == LinkState::kUp ? Glance::kNothing : Glance::kOther;
  LaneTable lanes{*u.link};
  std::size_t taken = 0;
  while (taken < found_count_ && u.link->end.take_bytes(found_[taken], u.framed->place, lanes)) taken++;
  if (taken < found_count_) {
    std::copy(found_.begin() + static_cast<std::ptrdiff_t>(taken),
              found_.begin() + static_cast<std::ptrdiff_t>(found_count_), found_.begin());
    found_count_ -= taken;
    return Glance::kOther;
  }
  found_count_ = 0;
  const bool sound = !u.framed->lane.aborted() && u.link->end.state() == LinkState::kUp;
  return sound ? Glance::kBytes : Glance::kOther;
}

void ShortCalls::finish_glance(Context& ctx, const ShortPath& u) {
  owner_.take_messages(ctx, *u.link, std::span(found_).first(std::exchange(found_count_, 0)));
  take_turn(ctx, u);
}

std::optional<std::span<const std::byte>> ShortCalls::readable(const ShortPath& u, std::size_t most) {
  const Lane& lane = u.framed->lane;
  const Lane::Readable next = lane.readable();
  if (next.from == Lane::From::kNothing) return std::span<const std::byte>{};
  const bool wraps = next.bytes < most && next.bytes != lane.parts().bytes();
  const bool known = u.link->bytes >= lane.local().ring + lane.ring().capacity();
  if (next.from != Lane::From::kRing || wraps || !known) return std::nullopt;
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(next.bytes, most));
  return std::span(u.link->memory + lane.local().ring + next.position, bytes);
}

bool ShortCalls::consume(const ShortPath& u, std::size_t bytes) {
  Framed& framed = *u.framed;
  Lane& lane = framed.lane;
  lane.consume(bytes);
  framed.note_read();
  // Bytes that came and were read at once need no event.
  const std::uint64_t left = lane.parts().bytes(), all = lane.consumed() + framed.raw_read + left;
  const bool untold = left != 0 && all > framed.heard;
  if (left == 0) framed.heard = all;
  const bool untimed = framed.quiet == kNever && lane.has_news();
  return !untold && !untimed && !u.link->end.has_own_write() && !lane.has_writes({u.link->memory, u.link->bytes});
}

bool ShortCalls::may_write(const ShortPath& u, std::size_t bytes) const {
  const Lane& lane = u.framed->lane;
  if (!lane.may_write_whole(bytes)) return false;
  return framed_.may_write_at_once(*u.tcb, bytes) && u.link->end.may_write_now() && u.mover->room() != 0;
}

void ShortCalls::write(const ShortPath& u, std::size_t bytes) {
  LaneTable lanes{*u.link};
  framed_.note_write(*u.tcb, bytes);
  if (u.framed->lane.is_gathering()) return lanes_.note_held();
  u.link->latest = u.framed->place;
  u.link->end.write_now(*u.mover, u.framed->place, lanes);
  // Bytes that have left no longer count as unsent (TCP_NOTSENT_LOWAT).
  u.tcb->overlay->taken = std::max(u.tcb->overlay->taken, u.framed->lane.next_offset());
}

void ShortCalls::take_turn(Context& ctx, const ShortPath& u) {
  LaneTable lanes{*u.link};
  if (u.framed->link == u.link->id) u.link->end.enqueue(u.framed->place, lanes);
  framed_.run_lane(ctx, *u.tcb);
}

}  // namespace bypass::fastpath
