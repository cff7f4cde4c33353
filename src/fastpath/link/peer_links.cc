#include "fastpath/link/peer_links.h"

#include <algorithm>

#include "stack/tcp/core.h"

namespace bypass::fastpath {

using tcp::Tcb;

namespace {

FramedConfig framed_config(const LinkTable& table, const LinksConfig& links) {
  FramedConfig config;
  config.tcp_window = links.tcp_window;
  config.handshake.capabilities = links.capabilities;
  if (table.valid()) config.handshake.tag = table.shared().tag;
  return config;
}

}  // namespace

PeerLinks::PeerLinks(tcp::Engine& engine, Memory& memory, const Config& config)
    : engine_(engine),
      config_(config),
      table_(memory, config_),
      reports_(config_),
      framed_(engine, framed_config(table_, config_), *this),
      lanes_(engine, framed_, table_),
      owner_(config_, {engine, framed_, table_, lanes_, reports_}),
      short_calls_(framed_, table_, lanes_, owner_) {}

const PeerLink* PeerLinks::link_of(const Tcb& tcb) const {
  if (!FramedTcp::has(tcb)) return nullptr;
  const Framed& framed = FramedTcp::of(tcb);
  if (!framed.on_lane()) return nullptr;
  const PeerLink* const link = const_cast<PeerLinks*>(this)->table_.find(framed.link);
  // A link that has failed carries nothing, even while the two ends have not agreed yet how much it carried.
  return link != nullptr && link->stage == Stage::kUp ? link : nullptr;
}

// --- What FramedTcp asks for

namespace {

// Tcb::peer_said
constexpr std::uint8_t kSpoke = 0x80, kHasRoce = 1, kHasShm = 2, kHasOurs = 4;  // the last: of our own place

/// True if both ports are on one link: IANA's terms for experimental options allow them unasked nowhere else.
bool is_neighbour(const Path& path) {
  return path.next_hop == path.remote;
}

}  // namespace

bool PeerLinks::may_ask(const Path& path) const {
  if (path.neighbour == Path::kLooped) return false;
  const auto names = [&path](const Prefix& peers) { return peers.contains(path.remote); };
  return is_neighbour(path) || std::any_of(config_.routed_peers.begin(), config_.routed_peers.end(), names);
}

/// True if the peer may be asked, and both ends have a device for it, as far as they have said.
bool PeerLinks::wanted(const Tcb& tcb, const SynOption* theirs) {
  const Path& path = tcb.path;
  if (!may_ask(path)) return false;
  const bool roce = table_.shared().makes(Mover::kRc, path.port), shm = table_.shared().makes(Mover::kShm, path.port);
  if (theirs == nullptr) return roce || shm;
  const std::uint8_t said = note_of(*theirs);
  const bool near = (said & kHasOurs) != 0;
  if (shm && (said & kHasShm) != 0 && !near) report_elsewhere(tcb, theirs->tag);
  return (roce && (said & kHasRoce) != 0) || (shm && near);
}

std::uint8_t PeerLinks::note_of(const SynOption& theirs) const {
  std::uint8_t note = kSpoke;
  if ((theirs.capabilities & kCapRoce) != 0) note |= kHasRoce;
  if ((theirs.capabilities & kCapShm) != 0) note |= config_.is_our_place(theirs.tag) ? kHasShm | kHasOurs : kHasShm;
  return note;
}

void PeerLinks::report_elsewhere(const Tcb& tcb, std::uint32_t tag) {
  if (config_.is_our_host(tag, table_.shared().tag))
    reports_.tell(Mover::kShm, tcb.path, tcb.path.remote, Reason::kElsewhere);
}

/// Reports what is missing at either end, as far as it is known.
void PeerLinks::on_plain(const Tcb& tcb) {
  const Path& path = tcb.path;
  if (path.neighbour == Path::kLooped) return reports_.tell(Mover::kShm, path, path.remote, Reason::kOneFamily);
  const bool roce = table_.shared().makes(Mover::kRc, path.port), shm = table_.shared().makes(Mover::kShm, path.port);
  if (!roce) reports_.tell(Mover::kRc, path, {}, Reason::kNotHere);
  if (!shm) reports_.tell(Mover::kShm, path, {}, Reason::kNotHere);
  if (!may_ask(path)) {
    if (roce) return reports_.tell(Mover::kRc, path, path.remote, Reason::kBehindRouter);
    if (shm)
      reports_.tell(Mover::kShm, path, path.next_hop,
                    Reason::kBehindRouter);  // mostly other hosts: once for all of them
    return;
  }
  const std::uint8_t said = tcb.peer_said;
  if (said == 0) {
    const Reason why = is_neighbour(path) ? Reason::kNotOffered : Reason::kNotOfferedBeyond;
    if (roce || shm) reports_.tell(roce ? Mover::kRc : Mover::kShm, path, path.remote, why);
    return;
  }
  if (roce)
    reports_.tell(Mover::kRc, path, path.remote, (said & kHasRoce) != 0 ? Reason::kNoMemory : Reason::kNotThere);
  if (shm && (said & kHasOurs) != 0) reports_.tell(Mover::kShm, path, path.remote, Reason::kNoMemory);
  if (shm && (said & kHasShm) == 0) reports_.tell(Mover::kShm, path, path.remote, Reason::kNotThere);
}

std::span<const std::byte> PeerLinks::memory(std::uint32_t id) {
  const PeerLink* const link = table_.find(id);
  if (link == nullptr || link->memory == nullptr) return {};
  return {link->memory, link->bytes};
}

bool PeerLinks::reads_ring(const Tcb& tcb, const Framed& framed) {
  const PeerLink* const link = table_.find(framed.link);
  return link == nullptr || table_.reads_ring(*link, tcb);
}

void PeerLinks::on_link_record(Context& ctx, Tcb& tcb, Framed& framed, const Record& record,
                               std::span<const std::byte> body) {
  owner_.on_link_record(ctx, tcb, framed, record, body);
}

bool PeerLinks::has_link_record(const Tcb& tcb, const Framed&) {
  return owner_.has_link_record(tcb);
}

Record PeerLinks::next_link_record(Tcb& tcb, Framed&, std::span<std::byte> body) {
  return owner_.next_link_record(tcb, body);
}

// --- Lanes

void PeerLinks::on_change(Context& ctx, Tcb& tcb, Framed& framed) {
  Lane& lane = framed.lane;
  PeerLink* link = table_.find(framed.link);
  if (link != nullptr && (lane.detached() || lane.offered())) {
    table_.shared().count(*link).returns++;
    table_.unlist(*link, framed);
    LinkLanes::note_detached(*link, framed);
    // The peer does not know the link any more.
    if (lane.declined() == Reason::kLinkError && lane.opens()) table_.fail(*link, Reason::kPeerLinkDown);
    if (lane.declined() == Reason::kNoMemory && lane.opens())
      reports_.tell(link->mover, tcb.path, link->peer, Reason::kLanesTaken);
    link = nullptr;
  }
  if (link == nullptr) {
    if (lane.offered()) {
      answer_offer(tcb, framed);
    } else if (framed.both_framed()) {
      look_for_lane(ctx, tcb, framed);
    }
    link = table_.find(framed.link);
  }
  if (link == nullptr) return;
  owner_.offer_to_carry(*link, tcb);
  if (lane.link_suspect()) table_.fail(*link, Reason::kPeerLinkDown);
  if (lane.can_cut() && (!link->reads_memory || table_.may_read(framed_.ring_bytes(tcb, framed)))) {
    framed_.cut(tcb);
    link->used = true;
  }
  LaneTable lanes{*link};
  link->latest = framed.place;
  link->end.enqueue(framed.place, lanes);
  if (lane.is_gathering()) lanes_.note_held();
}

void PeerLinks::look_for_lane(Context& ctx, Tcb& tcb, Framed& framed) {
  Lane& lane = framed.lane;
  PeerLink* const link = table_.link_to(tcb, framed);
  if (link != nullptr) owner_.offer_to_carry(*link, tcb);
  if (!lane.opens() || !lane.detached() || lane.aborted() || framed.shut || framed.closed) return;
  if (link == nullptr || !link->is_current()) return owner_.want(ctx, tcb, framed);
  if (link->stage != Stage::kUp || !LinkLanes::may_look(*link, framed)) return;
  framed.tried = link->id;
  framed.tried_round = link->round;
  framed.tried_at = framed.activity();
  LaneAddress address;
  if (list_place(*link, tcb, framed, address)) lane.offer(link->id, address, link->peer_memory);
}

void PeerLinks::answer_offer(Tcb& tcb, Framed& framed) {
  Lane& lane = framed.lane;
  PeerLink* const link = table_.find(lane.link());
  const bool known = link != nullptr && link->peer == tcb.path.remote && link->tag == tag_of_peer(framed);
  if (known && link->stage == Stage::kSettingUp) {  // the answer goes out at this connection's next turn
    owner_.offer_to_carry(*link, tcb);
    owner_.on_lane_offered(*link);
    return;
  }
  if (!known || link->stage != Stage::kUp) return lane.decline(Reason::kLinkError);
  LaneAddress address;
  if (link->is_dry() || !list_place(*link, tcb, framed, address)) return lane.decline(Reason::kNoMemory);
  lane.accept(address, link->peer_memory);
  if (lane.aborted()) table_.unlist(*link, framed);
}

bool PeerLinks::list_place(PeerLink& link, Tcb& tcb, Framed& framed, LaneAddress& address) {
  if (table_.list(link, tcb, framed, address)) return true;
  reports_.tell(link.mover, tcb.path, link.peer, Reason::kLanesTaken);
  return false;
}

bool PeerLinks::on_gone(Context&, Tcb& tcb, Framed& framed) {
  table_.shared().for_each([&](std::size_t, PeerLink& link) {
    if (link.carrier == &tcb) link.carrier = nullptr;
  });
  PeerLink* const link = table_.find(framed.link);
  if (link == nullptr) return false;
  if (framed.lane.detached() || framed.lane.offered() || framed.lane.released()) {
    table_.unlist(*link, framed);
    return false;
  }
  return lanes_.keep_ghost(*link, framed);
}

}  // namespace bypass::fastpath
