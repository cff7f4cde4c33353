// PeerLink: a family's link to the stack of a peer: the part that lies in the arena.
//
// Every process of the family uses its lanes: reads from their rings, and leaves for the link's end what is to be
// written. The queue pair, or the memory shared with the peer, is the owner's of the ports, who alone takes messages
// and writes (PeerLinks). When it dies the link is over, and its connections go on over TCP.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "fastpath/framed/framed.h"
#include "fastpath/link/link_end.h"
#include "fastpath/link/link_layout.h"
#include "fastpath/setup/link_record.h"
#include "stack/address.h"
#include "stack/time.h"

namespace bypass::fastpath {

/// A lane's number on a link, and whose it is.
struct LanePlace {
  tcp::Tcb* tcb = nullptr;       // of a connection that has gone: whose send ring is still pinned, or null
  std::uint16_t next = kNoLane;  // of the free numbers, of the ghosts, or of those that wait
  bool listed = false;
  bool waits = false;  // for its turn, in a list through `next`
  bool ghost = false;  // the connection has gone: its lane is in PeerLink::ghosts
  // Low bits of the stream's offsets when lanes were shared out last.
  std::uint32_t sent = 0, taken = 0;
};

struct PeerLink {
  enum class Stage : std::uint8_t {
    kFree,
    kWanted,  // a connection asks for it; the owner has not begun
    kSettingUp,
    kUp,
    kEnding,   // has failed; counts are not final yet
    kClosing,  // drained; memory is kept until it is read
    kRefused,  // it was not made, or has failed: none is asked for before `retry`
  };

  IpAddress peer;
  std::uint32_t tag = 0;  // the peer's
  std::uint32_t id = 0;
  std::uint16_t port = 0;  // the way to it
  Stage stage = Stage::kFree;
  Mover mover = Mover::kRc;       // of the device
  std::uint8_t choice = 0;        // which of the port's devices, in their order
  bool reads_memory = true;       // LinkDevice's
  bool passed_on = false;         // kRefused: another entry says when to try again
  Reason reason = Reason::kNone;  // why it is not up
  bool used = false;              // some connection has cut to a lane
  bool asked_by_peer = false;
  std::uint8_t failures = 0;  // one after the other
  Instant retry{};
  Instant since{};              // of kUp and kEnding
  tcp::Tcb* carrier = nullptr;  // whose records set it up

  // --- From kSettingUp on
  std::byte* memory = nullptr;  // a block of Memory; the peer writes it
  std::uint32_t bytes = 0;
  std::uint32_t lanes = 0;
  std::uint32_t listed = 0;  // places
  std::uint64_t peer_memory = 0;
  LanePlace* places = nullptr;  // a block of Memory, `lanes` of them
  Lane* ghosts = nullptr;       // as many, touched only when there are any
  std::array<std::uint16_t, LinkLayout::kSizes> free{kNoLane, kNoLane, kNoLane, kNoLane};
  std::uint16_t first_ghost = kNoLane;
  std::uint16_t latest = kNoLane;  // whose program called last: a bulk sender's, if there is one
  Instant haunted = kNever;        // since when there are many ghosts
  // Lanes are shared out in rounds (lane_sharing.cc).
  std::uint32_t round = 1;
  std::uint32_t full_round = 0;    // the last one in which the peer had no lane free
  std::uint32_t dry_round = 0;     // the last one before which there was not memory enough
  std::uint64_t memory_waits = 0;  // Engine's, then
  std::uint32_t unmet = 0;         // connections that have found none free in this one
  std::uint32_t cramped = 0;       // busy ones that had a small ring in the last, and there was no larger one …
  std::uint32_t cramped_size = 0;  // … than of this size (LinkLayout), the smallest of theirs
  Instant shared{};                // when this one began
  LinkEnd end = LinkEnd();

  [[nodiscard]] LinkLayout layout() const { return LinkLayout(bytes); }
  /// Lanes pin their send rings: while memory is short, nobody gets one.
  [[nodiscard]] bool is_dry() const { return dry_round == round; }
  [[nodiscard]] bool is_current() const { return stage != Stage::kFree && stage < Stage::kEnding; }
};

/// One that is asked for by nobody, for who is told why.
[[nodiscard]] inline PeerLink refused_link(Mover mover, const IpAddress& peer, std::uint16_t port, Reason why) {
  PeerLink link;
  link.peer = peer;
  link.port = port;
  link.mover = mover;
  link.stage = PeerLink::Stage::kRefused;
  link.reason = why;
  return link;
}

/// A family's links, in one block of Memory.
struct PeerTable {
  static constexpr std::size_t kLinks = 64;

  std::array<PeerLink, kLinks> links;
  std::uint64_t used = 0;                      // bit i: links[i] is not free
  std::size_t registered = 0;                  // bytes of the arena, from Memory on, that devices may read
  std::array<std::uint32_t, kMovers> ready{};  // bit i: port i makes links of this mover
  std::uint32_t tag = 0;                       // this stack's
  bool torn = false;                           // somebody died inside the lock: all links are to end
  bool owner_called = false;                   // there is something that only the owner can do

  /// Since the beginning, of links of one mover.
  struct Counts {
    std::uint64_t links_made = 0, links_failed = 0, lanes = 0, returns = 0;
  };
  std::array<Counts, kMovers> counts{};

  [[nodiscard]] Counts& count(const PeerLink& link) { return counts[static_cast<std::size_t>(link.mover) - 1]; }
  [[nodiscard]] const Counts& count(Mover mover) const { return counts[static_cast<std::size_t>(mover) - 1]; }
  [[nodiscard]] bool makes(Mover mover, std::uint16_t port) const {
    return (ready[static_cast<std::size_t>(mover) - 1] >> port & 1) != 0;
  }
  template <typename F>
  void for_each(F&& f) {
    for (std::uint64_t left = used; left != 0; left &= left - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      f(i, links[i]);
    }
  }
};

/// The tag of the peer's stack.
[[nodiscard]] inline std::uint32_t tag_of_peer(const Framed& framed) {
  return std::visit([](const auto& handshake) { return handshake.peer().tag; }, framed.handshake);
}

/// A link's lanes, as LinkEnd asks for them.
struct LaneTable {
  PeerLink& link;

  [[nodiscard]] Lane* find(std::uint16_t number) {
    if (number >= link.lanes) return nullptr;
    const LanePlace& place = link.places[number];
    if (!place.listed) return nullptr;
    if (place.ghost) return &link.ghosts[number];
    return place.tcb != nullptr ? &FramedTcp::of(*place.tcb).lane : nullptr;
  }
  [[nodiscard]] ByteSource source(std::uint16_t number) {
    const LanePlace& place = link.places[number];
    return place.tcb != nullptr ? FramedTcp::source(*place.tcb) : ByteSource{nullptr, 0, 1};
  }
  template <typename F>
  void for_each(F&& f) {
    if (link.listed == 0) return;
    for (std::uint32_t i = 0; i < link.lanes; i++)
      if (Lane* lane = find(static_cast<std::uint16_t>(i))) f(*lane);
  }
};

}  // namespace bypass::fastpath
