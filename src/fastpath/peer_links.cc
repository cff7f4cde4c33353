// PeerLinks: a connection's side.
#include "fastpath/peer_links.h"

#include <algorithm>
#include <bit>
#include <new>

#include "stack/tcp/core.h"
#include "stack/tcp/input.h"

namespace bypass::fastpath {

using tcp::Tcb;

namespace {

/// While lanes wait for room on a link.
constexpr Duration kRoomLook = std::chrono::milliseconds(1);
/// A peer that lives has said all that a lane waits for by then.
constexpr Duration kMostHaunted = std::chrono::seconds(5);
/// So many ghosts are many, of however many lanes: each poll looks at them.
constexpr std::uint32_t kManyGhosts = 256;

/// A number of this stack's, whose upper bits say where it is, if that is known.
std::uint32_t make_tag(const PeerLinks::Config& config) {
  const auto random = static_cast<std::uint32_t>(config.random());
  if (config.place == 0) return random;
  return config.place << (32 - PeerLinks::kPlaceBits) | random >> PeerLinks::kPlaceBits;
}

PeerTable* make_table(Memory& memory, std::uint32_t tag) {
  void* const place = memory.allocate(sizeof(PeerTable));
  if (place == nullptr) return nullptr;
  auto* table = new (place) PeerTable;
  table->tag = tag;
  return table;
}

FramedConfig framed_config(const PeerTable* table, const PeerLinks::Config& links) {
  FramedConfig config;
  config.tcp_window = links.tcp_window;
  config.handshake.capabilities = links.capabilities;
  if (table != nullptr) config.handshake.tag = table->tag;
  return config;
}

}  // namespace

PeerLinks::PeerLinks(tcp::Engine& engine, Memory& memory, const Config& config)
    : engine_(engine),
      memory_(memory),
      config_(config),
      table_(make_table(memory, make_tag(config))),
      framed_(engine, framed_config(table_, config), *this) {}

// --- Finding

PeerLink* PeerLinks::find(std::uint32_t id) {
  if (id == 0) return nullptr;
  for (std::uint64_t left = table_->used; left != 0; left &= left - 1) {
    PeerLink& link = table_->links[static_cast<std::size_t>(std::countr_zero(left))];
    if (link.id == id) return &link;
  }
  return nullptr;
}

/// The one that is there or under way; else the one that says when to try again; null: there has been none.
PeerLink* PeerLinks::link_to(const Tcb& tcb, const Framed& framed) {
  const std::uint32_t tag = tag_of_peer(framed);
  PeerLink* found = nullptr;
  table_->for_each([&](std::size_t, PeerLink& link) {
    if (link.tag != tag || link.port != tcb.path.port || link.peer != tcb.path.remote || link.passed_on) return;
    if (found == nullptr || link.is_current() || (!found->is_current() && link.retry > found->retry)) found = &link;
  });
  return found;
}

const PeerLink* PeerLinks::link_of(const Tcb& tcb) const {
  if (!FramedTcp::has(tcb)) return nullptr;
  const Framed& framed = FramedTcp::of(tcb);
  if (!framed.on_lane()) return nullptr;
  const PeerLink* const link = const_cast<PeerLinks*>(this)->find(framed.link);
  // One that has failed carries nothing, even while it is not agreed on how much it has.
  return link != nullptr && link->stage == Stage::kUp ? link : nullptr;
}

// --- What FramedTcp asks

namespace {

// Tcb::peer_said
constexpr std::uint8_t kSpoke = 0x80, kHasRoce = 1, kHasShm = 2, kHasOurs = 4;  // the last: of our own place

/// Ours and the peer's port are on one link: IANA's terms for experimental options allow no more unasked.
bool is_neighbour(const Path& path) {
  return path.next_hop == path.remote;
}

}  // namespace

bool PeerLinks::may_ask(const Path& path) const {
  if (path.neighbour == Path::kLooped) return false;
  const auto names = [&path](const Prefix& peers) { return peers.contains(path.remote); };
  return is_neighbour(path) || std::any_of(config_.routed_peers.begin(), config_.routed_peers.end(), names);
}

/// Of a peer that may be asked, and there is a device for it at both ends, as far as they have said.
bool PeerLinks::wanted(const Tcb& tcb, const SynOption* theirs) {
  const Path& path = tcb.path;
  if (!may_ask(path)) return false;
  const bool roce = table_->makes(Mover::kRc, path.port), shm = table_->makes(Mover::kShm, path.port);
  if (theirs == nullptr) return roce || shm;
  const std::uint8_t said = note_of(*theirs);
  const bool near = (said & kHasOurs) != 0;
  if (shm && (said & kHasShm) != 0 && !near) tell_place(tcb, theirs->tag);
  return (roce && (said & kHasRoce) != 0) || (shm && near);
}

std::uint8_t PeerLinks::note_of(const SynOption& theirs) const {
  std::uint8_t note = kSpoke;
  if ((theirs.capabilities & kCapRoce) != 0) note |= kHasRoce;
  if ((theirs.capabilities & kCapShm) != 0) note |= at_our_place(theirs.tag) ? kHasShm | kHasOurs : kHasShm;
  return note;
}

/// That another host shares no memory needs no word.
void PeerLinks::tell_place(const Tcb& tcb, std::uint32_t tag) {
  if (config_.place != 0 && (tag ^ table_->tag) >> (32 - kHostBits) == 0)
    tell(Mover::kShm, tcb.path, tcb.path.remote, Reason::kElsewhere);
}

/// What there is not at either end, as far as it is known.
void PeerLinks::on_plain(const Tcb& tcb) {
  const Path& path = tcb.path;
  if (path.neighbour == Path::kLooped) return tell(Mover::kShm, path, path.remote, Reason::kOneFamily);
  const bool roce = table_->makes(Mover::kRc, path.port), shm = table_->makes(Mover::kShm, path.port);
  if (!roce) tell(Mover::kRc, path, {}, Reason::kNotHere);
  if (!shm) tell(Mover::kShm, path, {}, Reason::kNotHere);
  if (!may_ask(path)) {
    if (roce) return tell(Mover::kRc, path, path.remote, Reason::kBehindRouter);
    if (shm) tell(Mover::kShm, path, path.next_hop, Reason::kBehindRouter);  // mostly other hosts: once for all of them
    return;
  }
  const std::uint8_t said = tcb.peer_said;
  if (said == 0) {
    const Reason why = is_neighbour(path) ? Reason::kNotOffered : Reason::kNotOfferedBeyond;
    if (roce || shm) tell(roce ? Mover::kRc : Mover::kShm, path, path.remote, why);
    return;
  }
  if (roce) tell(Mover::kRc, path, path.remote, (said & kHasRoce) != 0 ? Reason::kNoMemory : Reason::kNotThere);
  if (shm && (said & kHasOurs) != 0) tell(Mover::kShm, path, path.remote, Reason::kNoMemory);
  if (shm && (said & kHasShm) == 0) tell(Mover::kShm, path, path.remote, Reason::kNotThere);
}

void PeerLinks::tell(Mover mover, const Path& path, const IpAddress& whom, Reason why) {
  const std::optional<IpAddress> news = reported_.add({whom, path.port, mover, why});
  if (!news) return;
  note(refused_link(mover, *news, path.port, why));
}

std::span<const std::byte> PeerLinks::memory(std::uint32_t id) {
  const PeerLink* const link = find(id);
  if (link == nullptr || link->memory == nullptr) return {};
  return {link->memory, link->bytes};
}

void PeerLinks::on_change(Context& ctx, Tcb& tcb, Framed& framed) {
  Lane& lane = framed.lane;
  PeerLink* link = find(framed.link);
  if (link != nullptr && (lane.detached() || lane.offered())) {
    table_->count(*link).returns++;
    unlist(*link, framed);
    note_detached(*link, framed);
    // The peer knows no such link any more.
    if (lane.declined() == Reason::kLinkError && lane.opens()) fail(*link, Reason::kPeerLinkDown);
    if (lane.declined() == Reason::kNoMemory && lane.opens())
      tell(link->mover, tcb.path, link->peer, Reason::kLanesTaken);
    link = nullptr;
  }
  if (link == nullptr) {
    if (lane.offered()) {
      answer_offer(tcb, framed);
    } else if (framed.both_framed()) {
      look_for_lane(ctx, tcb, framed);
    }
    link = find(framed.link);
  }
  if (link == nullptr) return;
  offer_to_carry(*link, tcb);
  if (lane.link_suspect()) fail(*link, Reason::kPeerLinkDown);
  if (lane.can_cut() && (!link->reads_memory || may_read(tcb, framed))) {
    framed_.cut(tcb);
    link->used = true;
  }
  LaneTable lanes{*link};
  link->latest = framed.place;
  link->end.enqueue(framed.place, lanes);
  if (lane.is_gathering()) hold();
}

// --- Lanes

/// Of a link whose set-up has something to say yet, and no connection to say it on, or one that says nothing any more.
void PeerLinks::offer_to_carry(PeerLink& link, Tcb& tcb) {
  const Own& own = own_[index_of(link)];
  if (own.setup == nullptr || (link.stage == Stage::kUp && !own.has_record)) return;
  if (link.carrier != nullptr && FramedTcp::may_speak(*link.carrier)) return;
  if (FramedTcp::may_speak(tcb)) link.carrier = &tcb;
}

void PeerLinks::look_for_lane(Context& ctx, Tcb& tcb, Framed& framed) {
  Lane& lane = framed.lane;
  PeerLink* const link = link_to(tcb, framed);
  if (link != nullptr) offer_to_carry(*link, tcb);
  if (!lane.opens() || !lane.detached() || lane.aborted() || framed.shut || framed.closed) return;
  if (link == nullptr || !link->is_current()) return want(ctx, tcb, framed);
  if (link->stage != Stage::kUp || !may_look(*link, framed)) return;
  framed.tried = link->id;
  framed.tried_round = link->round;
  framed.tried_at = framed.activity();
  LaneAddress address;
  if (list(*link, tcb, framed, address)) lane.offer(link->id, address, link->peer_memory);
}

void PeerLinks::answer_offer(Tcb& tcb, Framed& framed) {
  Lane& lane = framed.lane;
  PeerLink* const link = find(lane.link());
  const bool known = link != nullptr && link->peer == tcb.path.remote && link->tag == tag_of_peer(framed);
  if (known && link->stage == Stage::kSettingUp) {  // answered at this connection's next turn
    offer_to_carry(*link, tcb);
    if (LinkSetup* const setup = own_[index_of(*link)].setup; setup != nullptr) setup->on_lane_offered();
    looked_ = {};
    return;
  }
  if (!known || link->stage != Stage::kUp) return lane.decline(Reason::kLinkError);
  LaneAddress address;
  if (link->is_dry() || !list(*link, tcb, framed, address)) return lane.decline(Reason::kNoMemory);
  lane.accept(address, link->peer_memory);
  if (lane.aborted()) unlist(*link, framed);
}

/// Gives the connection a number and a ring: the largest that is free.
bool PeerLinks::list(PeerLink& link, Tcb& tcb, Framed& framed, LaneAddress& address) {
  const auto free = std::find_if(link.free.begin(), link.free.end(), [](std::uint16_t n) { return n != kNoLane; });
  if (free == link.free.end()) {
    link.unmet++;
    tell(link.mover, tcb.path, link.peer, Reason::kLanesTaken);
    return false;
  }
  const std::uint16_t number = *free;
  LanePlace& place = link.places[number];
  *free = place.next;
  place = {.tcb = &tcb,
           .listed = true,
           .sent = ~static_cast<std::uint32_t>(framed.lane.next_offset()),
           .taken = static_cast<std::uint32_t>(framed.lane.consumed())};  // not quiet yet
  link.listed++;
  table_->count(link).lanes++;
  framed.link = link.id;
  framed.place = number;
  framed.lane.queued = 0;
  address = link.layout().address(number);
  std::fill_n(link.memory + address.credit, sizeof(CreditBlock), std::byte{});  // the last lane's counters
  return true;
}

void PeerLinks::free_place(PeerLink& link, std::uint16_t number) {
  LaneTable lanes{link};
  link.end.dequeue(number, lanes);
  std::uint16_t& free = link.free[link.layout().size_of(number)];
  link.places[number] = {.next = free};
  free = number;
  link.listed--;
}

void PeerLinks::unlist(PeerLink& link, Framed& framed) {
  free_place(link, framed.place);
  framed.link = 0;
  framed.place = kNoLane;
}

/// Devices can read the send ring, wherever it may come to lie before it is pinned.
bool PeerLinks::may_read(const Tcb& tcb, const Framed& framed) const {
  const std::size_t top = memory_.blocks().size() + 2 * framed_.ring_bytes(tcb, framed);
  return table_->registered >= std::min(top, memory_.most_block_bytes());
}

bool PeerLinks::reads_ring(const Tcb& tcb, const Framed& framed) {
  const PeerLink* const link = find(framed.link);
  if (link == nullptr || !link->reads_memory || tcb.ring.block() == nullptr) return true;
  const auto* const end = static_cast<const std::byte*>(tcb.ring.block()) + tcb.ring.capacity();
  return end <= memory_.blocks().data() + table_->registered;
}

// --- The end of a connection

bool PeerLinks::on_gone(Context&, Tcb& tcb, Framed& framed) {
  table_->for_each([&](std::size_t, PeerLink& link) {
    if (link.carrier == &tcb) link.carrier = nullptr;
  });
  PeerLink* const link = find(framed.link);
  if (link == nullptr) return false;
  if (framed.lane.detached() || framed.lane.offered() || framed.lane.released()) {
    unlist(*link, framed);
    return false;
  }
  LanePlace& place = link->places[framed.place];
  LaneTable lanes{*link};
  link->end.dequeue(framed.place, lanes);
  Lane* const ghost = new (&link->ghosts[framed.place]) Lane(framed.lane);
  place.ghost = true;
  place.next = link->first_ghost;
  link->first_ghost = framed.place;
  const bool reads = framed.pinned && !ghost->source_idle();
  if (!reads) place.tcb = nullptr;
  link->end.enqueue(framed.place, lanes);
  framed.link = 0;
  return reads;
}

/// Those whose peers have nothing more to say go. One whose connection was reset between an offer and its answer never
/// does, as neither end can say to the other what it waits for: too many of them end the link, and the next one is
/// empty.
void PeerLinks::sweep_ghosts(Context& ctx, PeerLink& link) {
  std::uint16_t* before = &link.first_ghost;
  std::uint32_t left = 0;
  while (*before != kNoLane) {
    const std::uint16_t number = *before;
    LanePlace& place = link.places[number];
    const Lane& ghost = link.ghosts[number];
    const bool over = ghost.released();  // then its writes have been read, too
    if (place.tcb != nullptr && (over || ghost.source_idle()))
      tcp::unpin_ring(engine_, ctx, *std::exchange(place.tcb, nullptr));
    if (!over) {
      before = &place.next;
      left++;
      continue;
    }
    *before = place.next;
    free_place(link, number);
  }
  if (left <= std::min(link.lanes / 8, kManyGhosts)) {
    link.haunted = kNever;
  } else if (link.haunted == kNever) {
    link.haunted = ctx.now;
  } else if (link.stage == Stage::kUp && ctx.now - link.haunted >= kMostHaunted) {
    fail(link, Reason::kLinkError);
  }
}

// --- Turns

tcp::Tcb* PeerLinks::connection_of(const PeerLink& link, std::uint16_t number) {
  const LanePlace* const place = number < link.lanes ? &link.places[number] : nullptr;
  return place != nullptr && place->listed && !place->ghost ? place->tcb : nullptr;
}

void PeerLinks::run_lane(Context& ctx, PeerLink& link, std::uint16_t number) {
  if (Tcb* const tcb = connection_of(link, number); tcb != nullptr) framed_.run_lane(ctx, *tcb);
}

void PeerLinks::run_all(Context& ctx, PeerLink& link) {
  for (std::uint32_t i = 0; i < link.lanes && link.listed != 0; i++)
    if (Tcb* const tcb = connection_of(link, static_cast<std::uint16_t>(i)); tcb != nullptr) framed_.run(ctx, *tcb);
}

/// What is said on the link may be the last that a connection has waited for.
void PeerLinks::write(Context& ctx, PeerLink& link, Link& mover) {
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

bool PeerLinks::flush(Context& ctx) {
  if (table_->used == 0) [[likely]]
    return true;
  bool all = true;
  table_->for_each([&](std::size_t i, PeerLink& link) {
    if (link.stage != Stage::kUp) return;
    if (own_[i].setup == nullptr) {
      all = all && !link.end.has_queue();
      return;
    }
    Link& mover = own_[i].setup->link();
    write(ctx, link, mover);
    // A thread that sleeps already may not have asked to be woken for it.
    if (link.end.has_queue() && mover.room() == 0) wait_until(ctx.now + kRoomLook);
  });
  return all && (owner_ || !std::exchange(table_->owner_called, false));
}

}  // namespace bypass::fastpath
