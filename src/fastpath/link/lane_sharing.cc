// LinkLanes: a link has fewer lanes than a peer may have connections, and few large rings. So quiet connections give
// back what others lack.
//
// Twice a second the owner looks at every lane. If a connection has found no lane free, connections that moved nothing
// since the last look go back to TCP. A connection that is busy with a small ring leaves it for a larger ring, once one
// is free. A change costs records and a moment without a lane. So only a part of all lanes changes at a time, and a
// connection that is neither quiet nor cramped keeps its lane. While writers wait for memory, all quiet connections go
// back to TCP to free their send rings, and none gets a lane.
// Tests: tests/fastpath/peer_links_many_test.cc.
#include <algorithm>
#include <array>
#include <utility>

#include "fastpath/link/link_lanes.h"

namespace bypass::fastpath {
namespace {

constexpr Duration kRound = std::chrono::milliseconds(500);
/// At most one lane in so many is taken from quiet connections in a round.
constexpr std::uint32_t kTurnover = 8;
/// At least so many are taken, if that part allows it: where one connection was reported without a lane, the peer has
/// more.
constexpr std::uint32_t kFew = 16;
/// A ring is too small for a connection that takes its capacity so many times in a round.
constexpr std::uint64_t kBusy = 32;

std::uint32_t low(std::uint64_t offset) {
  return static_cast<std::uint32_t>(offset);
}

}  // namespace

bool LinkLanes::may_look(const PeerLink& link, const Framed& framed) {
  if (link.full_round == link.round || link.is_dry()) return false;
  return framed.tried != link.id || (framed.tried_round != link.round && framed.tried_at != framed.activity());
}

void LinkLanes::note_detached(PeerLink& link, Framed& framed) {
  const bool declined = framed.lane.opens() && framed.lane.declined() == Reason::kNoMemory;
  if (declined) link.full_round = link.round;
  framed.tried = link.id;
  // a connection whose lane was taken looks for one when it sends again
  framed.tried_round = link.round - (declined ? 0 : 1);
  framed.tried_at = framed.activity();
}

void LinkLanes::share(Context& ctx, PeerLink& link) {
  if (ctx.now - link.shared < kRound) return;
  link.shared = ctx.now;
  link.round++;
  const LinkLayout layout = link.layout();
  const std::uint32_t most = std::max(link.lanes / kTurnover, 1U);
  const std::uint64_t waits = engine_.memory_waits();
  if (waits != std::exchange(link.memory_waits, waits) || engine_.waits_for_memory()) link.dry_round = link.round;
  std::uint32_t any_wanted = link.unmet == 0 ? 0 : std::min(std::max(link.unmet, kFew), most);
  if (link.is_dry()) any_wanted = link.lanes;  // all quiet ones, for their send rings
  std::uint32_t large_wanted = std::min(link.cramped, most);
  const std::size_t too_small = std::exchange(link.cramped_size, std::uint32_t{0});
  link.unmet = link.cramped = 0;
  std::array<std::uint16_t, LinkLayout::kSizes> free = link.free;
  std::uint16_t leaving = kNoLane;  // through LanePlace::next
  for (std::uint32_t i = 0; i < link.lanes && link.listed != 0; i++) {
    LanePlace& place = link.places[i];
    if (!place.listed || place.ghost) continue;
    Lane& lane = FramedTcp::of(*place.tcb).lane;
    const std::uint32_t sent = low(lane.next_offset()) - place.sent, taken = low(lane.consumed()) - place.taken;
    place.sent += sent, place.taken += taken;
    if (!lane.may_leave()) continue;
    const std::size_t size = layout.size_of(i);
    const bool quiet = sent == 0 && taken == 0;
    bool leaves = false;
    if (quiet && any_wanted != 0) {
      any_wanted--;
      leaves = true;
    } else if (quiet && large_wanted != 0 && size < too_small) {
      large_wanted--;
      leaves = true;
    } else if (layout.first(size) != 0 && taken >= kBusy << LinkLayout::kRingLog2[size]) {
      const auto larger = std::find_if(free.begin(), free.begin() + size, [](auto n) { return n != kNoLane; });
      leaves = larger != free.begin() + size;
      if (leaves) *larger = link.places[*larger].next;
      if (!leaves) {
        link.cramped++;
        link.cramped_size = std::max(link.cramped_size, static_cast<std::uint32_t>(size));
      }
    }
    if (!leaves) continue;
    lane.leave();
    place.next = std::exchange(leaving, static_cast<std::uint16_t>(i));
  }
  while (leaving != kNoLane) run_lane(ctx, link, std::exchange(leaving, link.places[leaving].next));
}

}  // namespace bypass::fastpath
