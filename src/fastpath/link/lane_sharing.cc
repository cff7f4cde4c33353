// LinkLanes: a link has fewer lanes than a peer may have connections, and few large rings. A quiet connection gives
// back what others lack.
//
// Twice a second the owner looks at every lane. While a connection has found none free, those go back to TCP that have
// moved nothing since the last look; one that is busy with a small ring leaves it for a larger one, once there is one.
// Changing costs records and a moment without a lane: so only a part of all lanes changes at a time, and a connection
// that is neither quiet nor cramped keeps what it has. While writers wait for memory, all who are quiet go back, for
// their send rings, and nobody gets a lane.
#include <algorithm>
#include <array>
#include <utility>

#include "fastpath/link/link_lanes.h"

namespace bypass::fastpath {
namespace {

constexpr Duration kRound = std::chrono::milliseconds(500);
/// Of all lanes, the part that may be taken from quiet connections in a round.
constexpr std::uint32_t kTurnover = 8;
/// So many at least, where that part allows it: a peer that is told of one without a lane has more of them.
constexpr std::uint32_t kFew = 16;
/// Fillings of its ring that a connection takes in a round when the ring is too small for it.
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
  framed.tried_round = link.round - (declined ? 0 : 1);  // whose lane was taken looks for one when it speaks again
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
  if (link.is_dry()) any_wanted = link.lanes;  // for the rings that they hold
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
