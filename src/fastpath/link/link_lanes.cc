#include "fastpath/link/link_lanes.h"

#include <algorithm>
#include <new>
#include <utility>

#include "stack/tcp/core.h"
#include "stack/tcp/input/input.h"

namespace bypass::fastpath {

using tcp::Tcb;

namespace {

/// By then a peer that lives has sent everything that a lane waits for.
constexpr Duration kLongestWithManyGhosts = std::chrono::seconds(5);
/// So many ghosts are too many, whatever the number of lanes: each poll looks at them.
constexpr std::uint32_t kManyGhosts = 256;

}  // namespace

// --- Turns

void LinkLanes::run_lane(Context& ctx, PeerLink& link, std::uint16_t number) {
  if (Tcb* const tcb = LinkTable::connection_of(link, number); tcb != nullptr) framed_.run_lane(ctx, *tcb);
}

void LinkLanes::run_all(Context& ctx, PeerLink& link) {
  for (std::uint32_t i = 0; i < link.lanes && link.listed != 0; i++)
    if (Tcb* const tcb = LinkTable::connection_of(link, static_cast<std::uint16_t>(i)); tcb != nullptr)
      framed_.run(ctx, *tcb);
}

void LinkLanes::write(Context& ctx, PeerLink& link, Link& mover) {
  LaneTable lanes{link};
  for (;;) {
    std::uint16_t first = kNoLane;  // through LanePlace::next
    link.end.flush(mover, lanes, [&](std::uint16_t number) {
      LanePlace& place = link.places[number];
      if (!place.ghost && !std::exchange(place.waits, true)) place.next = std::exchange(first, number);
    });
    if (first == kNoLane) return;
    while (first != kNoLane) {
      LanePlace& place = link.places[first];
      const std::uint16_t number = std::exchange(first, place.next);
      place.waits = false;
      run_lane(ctx, link, number);
    }
  }
}

// --- Connections that have gone

bool LinkLanes::keep_ghost(PeerLink& link, Framed& framed) {
  LanePlace& place = link.places[framed.place];
  LaneTable lanes{link};
  link.end.dequeue(framed.place, lanes);
  Lane* const ghost = new (&link.ghosts[framed.place]) Lane(framed.lane);
  place.ghost = true;
  place.next = link.first_ghost;
  link.first_ghost = framed.place;
  const bool reads = framed.pinned && !ghost->source_idle();
  if (!reads) place.tcb = nullptr;
  link.end.enqueue(framed.place, lanes);
  framed.link = 0;
  return reads;
}

void LinkLanes::sweep_ghosts(Context& ctx, PeerLink& link) {
  std::uint16_t* before = &link.first_ghost;
  std::uint32_t left = 0;
  while (*before != kNoLane) {
    const std::uint16_t number = *before;
    LanePlace& place = link.places[number];
    const Lane& ghost = link.ghosts[number];
    const bool over = ghost.released();  // then the peer has read its writes, too
    if (place.tcb != nullptr && (over || ghost.source_idle()))
      tcp::unpin_ring(engine_, ctx, *std::exchange(place.tcb, nullptr));
    if (!over) {
      before = &place.next;
      left++;
      continue;
    }
    *before = place.next;
    table_.free_place(link, number);
  }
  if (left <= std::min(link.lanes / 8, kManyGhosts)) {
    link.many_ghosts_since = kNever;
  } else if (link.many_ghosts_since == kNever) {
    link.many_ghosts_since = ctx.now;
  } else if (link.stage == PeerLink::Stage::kUp && ctx.now - link.many_ghosts_since >= kLongestWithManyGhosts) {
    table_.fail(link, Reason::kLinkError);
  }
}

}  // namespace bypass::fastpath
