#include "fastpath/link/link_table.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "stack/tcp/core.h"

namespace bypass::fastpath {

using tcp::Tcb;

namespace {

/// The tag of this stack. Its upper bits say where the stack is, if that is known.
std::uint32_t make_tag(const LinksConfig& config) {
  const auto random = static_cast<std::uint32_t>(config.random());
  if (config.place == 0) return random;
  return config.place << (32 - LinksConfig::kPlaceBits) | random >> LinksConfig::kPlaceBits;
}

PeerTable* make_table(Memory& memory, std::uint32_t tag) {
  void* const place = memory.allocate(sizeof(PeerTable));
  if (place == nullptr) return nullptr;
  auto* table = new (place) PeerTable;
  table->tag = tag;
  return table;
}

}  // namespace

LinkTable::LinkTable(Memory& memory, const LinksConfig& config)
    : memory_(memory),
      table_(config.table != nullptr ? config.table : make_table(memory, make_tag(config))),
      link_memory_(config.link_memory) {}

// --- Links

PeerLink* LinkTable::find(std::uint32_t id) {
  if (id == 0) return nullptr;
  for (std::uint64_t left = table_->used; left != 0; left &= left - 1) {
    PeerLink& link = table_->links[static_cast<std::size_t>(std::countr_zero(left))];
    if (link.id == id) return &link;
  }
  return nullptr;
}

PeerLink* LinkTable::link_to(const Tcb& tcb, const Framed& framed) {
  const std::uint32_t tag = tag_of_peer(framed);
  PeerLink* found = nullptr;
  table_->for_each([&](std::size_t, PeerLink& link) {
    if (link.tag != tag || link.port != tcb.path.port || link.peer != tcb.path.remote || link.passed_on) return;
    if (found == nullptr || link.is_current() || (!found->is_current() && link.retry > found->retry)) found = &link;
  });
  return found;
}

PeerLink* LinkTable::take_entry_from(PeerLink* idle, const IpAddress& peer, std::uint32_t tag, std::uint16_t port) {
  if (idle == nullptr) return nullptr;
  const IpAddress address = peer;  // a copy: `peer` may be a part of that entry
  *idle = PeerLink{};
  idle->peer = address;
  idle->tag = tag;
  idle->port = port;
  table_->used |= std::uint64_t{1} << index_of(*idle);
  return idle;
}

void LinkTable::free_entry(PeerLink& link) {
  table_->used &= ~(std::uint64_t{1} << index_of(link));
  link = PeerLink{};
}

LinkTable::Held LinkTable::held_by(const IpAddress& peer, std::uint32_t tag) const {
  Held held;
  table_->for_each([&](std::size_t, const PeerLink& link) {
    if (link.memory == nullptr) return;
    const bool same = link.peer == peer, asked = link.asked_by_peer && link.stage == Stage::kSettingUp;
    held.of_peer += same && link.tag == tag ? 1 : 0;
    held.of_address += same ? 1 : 0;
    held.asked += asked ? 1 : 0;
    held.asked_by_address += same && asked ? 1 : 0;
  });
  return held;
}

void LinkTable::fail(PeerLink& link, Reason why) {
  if (link.stage != Stage::kUp) return;
  LaneTable lanes{link};
  link.end.fail(why, lanes);
  table_->owner_called = true;
}

std::size_t LinkTable::fail_all() {
  std::size_t n = 0;
  table_->for_each([&](std::size_t, PeerLink& link) {
    n += link.stage == Stage::kUp ? 1 : 0;
    fail(link, Reason::kLinkError);
  });
  return n;
}

// --- Their memory

// Links have half of the arena's budget, and each gets a quarter of what the others have left.
std::uint32_t LinkTable::next_link_bytes() const {
  if (link_memory_ != 0) return link_memory_;
  std::size_t left = memory_.stats().budget_bytes / 2;
  table_->for_each([&left](std::size_t, const PeerLink& link) { left -= std::min<std::size_t>(left, link.bytes); });
  const auto share = static_cast<std::uint32_t>(std::min<std::size_t>(left / 4, LinkLayout::kMost));
  return std::max(std::bit_floor(share), LinkLayout::kLeast);
}

bool LinkTable::allocate(PeerLink& link, bool at_ease) {
  const std::uint32_t share = next_link_bytes(), least = std::min(share, LinkLayout::kLeast);
  const std::uint32_t wanted = at_ease ? share : least;
  for (std::uint32_t bytes = wanted; bytes >= least; bytes /= 2)
    if (allocate_bytes(link, bytes)) return true;
  return false;
}

bool LinkTable::allocate_bytes(PeerLink& link, std::uint32_t bytes) {
  const LinkLayout layout(bytes);
  link.memory = static_cast<std::byte*>(memory_.allocate_bulk(bytes));
  link.places = static_cast<LanePlace*>(memory_.allocate(layout.lanes() * sizeof(LanePlace)));
  link.ghosts = static_cast<Lane*>(memory_.allocate(layout.lanes() * sizeof(Lane)));
  if (link.memory == nullptr || link.places == nullptr || link.ghosts == nullptr) {
    release_memory(link);
    return false;
  }
  link.bytes = bytes;
  link.lanes = layout.lanes();
  for (std::size_t size = 0; size < LinkLayout::kSizes; size++) {
    const std::uint32_t first = layout.first(size), end = first + layout.count(size);
    for (std::uint32_t i = first; i < end; i++)
      new (&link.places[i]) LanePlace{.next = i + 1 == end ? kNoLane : static_cast<std::uint16_t>(i + 1)};
    link.free[size] = first == end ? kNoLane : static_cast<std::uint16_t>(first);
  }
  return true;
}

void LinkTable::release_memory(PeerLink& link) {
  if (link.memory != nullptr) memory_.release(std::exchange(link.memory, nullptr));
  if (link.places != nullptr) memory_.release(std::exchange(link.places, nullptr));
  if (link.ghosts != nullptr) memory_.release(std::exchange(link.ghosts, nullptr));
  link.bytes = link.lanes = 0;
}

bool LinkTable::may_read(std::size_t ring_bytes) const {
  const std::size_t top = memory_.blocks().size() + 2 * ring_bytes;
  return table_->registered >= std::min(top, memory_.most_block_bytes());
}

bool LinkTable::reads_ring(const PeerLink& link, const Tcb& tcb) const {
  if (!link.reads_memory || tcb.ring.block() == nullptr) return true;
  const auto* const end = static_cast<const std::byte*>(tcb.ring.block()) + tcb.ring.capacity();
  return end <= memory_.blocks().data() + table_->registered;
}

// --- Places of lanes

bool LinkTable::list(PeerLink& link, Tcb& tcb, Framed& framed, LaneAddress& address) {
  const auto free = std::find_if(link.free.begin(), link.free.end(), [](std::uint16_t n) { return n != kNoLane; });
  if (free == link.free.end()) {
    link.unmet++;
    return false;
  }
  const std::uint16_t number = *free;
  LanePlace& place = link.places[number];
  *free = place.next;
  place = {.tcb = &tcb,
           .listed = true,
           .sent = ~static_cast<std::uint32_t>(framed.lane.next_offset()),
           // its count begins here, so it is not quiet yet
           .taken = static_cast<std::uint32_t>(framed.lane.consumed())};
  link.listed++;
  table_->count(link).lanes++;
  framed.link = link.id;
  framed.place = number;
  framed.lane.queued = 0;
  address = link.layout().address(number);
  // the counters of the last lane lie there
  std::fill_n(link.memory + address.credit, sizeof(CreditBlock), std::byte{});
  return true;
}

void LinkTable::unlist(PeerLink& link, Framed& framed) {
  free_place(link, framed.place);
  framed.link = 0;
  framed.place = kNoLane;
}

void LinkTable::free_place(PeerLink& link, std::uint16_t number) {
  LaneTable lanes{link};
  link.end.dequeue(number, lanes);
  std::uint16_t& free = link.free[link.layout().size_of(number)];
  link.places[number] = {.next = free};
  free = number;
  link.listed--;
}

tcp::Tcb* LinkTable::connection_of(const PeerLink& link, std::uint16_t number) {
  const LanePlace* const place = number < link.lanes ? &link.places[number] : nullptr;
  return place != nullptr && place->listed && !place->ghost ? place->tcb : nullptr;
}

bool LinkTable::is_missed(PeerLink& link) {
  std::uint32_t left = link.listed;
  for (std::uint32_t i = 0; i < link.lanes && left != 0; i++) {
    if (!link.places[i].listed) continue;
    left--;
    const Tcb* const tcb = connection_of(link, static_cast<std::uint16_t>(i));
    if (tcb != nullptr && !FramedTcp::of(*tcb).lane.peer_ended()) return true;
  }
  return false;
}

// --- After a death

void LinkTable::rebuild(tcp::Engine& engine) {
  (void)memory_.mark_in_use(table_);
  table_->for_each([&](std::size_t, PeerLink& link) {
    if (link.memory == nullptr) return;
    const bool whole =
        memory_.mark_in_use(link.memory) && memory_.mark_in_use(link.places) && memory_.mark_in_use(link.ghosts);
    if (whole) return;
    link.memory = nullptr, link.places = nullptr, link.ghosts = nullptr;
    link.lanes = link.bytes = 0;
  });
  // The queue may be torn, and places may name connections that have gone. So the table is rebuilt from the
  // connections.
  table_->torn = true;
  table_->for_each([&](std::size_t, PeerLink& link) {
    link.listed = 0;
    link.first_ghost = kNoLane;
    link.carrier = nullptr;
    for (std::uint32_t i = 0; i < link.lanes; i++) link.places[i] = {};
    link.end = LinkEnd{};
  });
  engine.impl().tcbs.for_each([&](Tcb& tcb) {
    if (!FramedTcp::has(tcb)) return;
    Framed& framed = FramedTcp::of(tcb);
    framed.lane.queued = 0;
    // A death may have come between the two stores: what lies in the send ring counts as written.
    if (tcb.ring.end() > framed.lane.end()) framed.lane.write(tcb.ring.end() - framed.lane.end());
    PeerLink* const link = find(framed.link);
    if (link == nullptr || framed.place >= link->lanes) {
      framed.link = 0;
      return;
    }
    link->places[framed.place] = {.tcb = &tcb, .listed = true};
    link->listed++;
  });
}

}  // namespace bypass::fastpath
