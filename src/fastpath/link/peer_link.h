// PeerLink: a family's link to the stack of a peer: the part of the link that lies in the arena.
//
// Every process of the family uses the link's lanes: it reads from their rings, and queues at the link's end what is to
// be written. The queue pair, or the memory shared with the peer, belongs to the process that owns the ports. Only that
// process takes messages and writes (PeerLinks). When it dies, the link is over and its connections go on over TCP.
// Tests: tests/fastpath/peer_links_test.cc.
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

/// A lane's number on a link, and the connection that has it.
struct LanePlace {
  tcp::Tcb* tcb = nullptr;       // null if the connection has gone, unless its send ring is still pinned
  std::uint16_t next = kNoLane;  // the next in a list: of free numbers, of ghosts, or of lanes that wait
  bool listed = false;
  bool waits = false;  // the lane waits for its turn, in a list through `next`
  bool ghost = false;  // the connection has gone: its lane is in PeerLink::ghosts
  // The low bits of the stream's offsets when lanes were shared out last.
  std::uint32_t sent = 0, taken = 0;
};

struct PeerLink {
  enum class Stage : std::uint8_t {
    kFree,
    kWanted,  // a connection asks for it; the owner has not begun
    kSettingUp,
    kUp,
    kEnding,   // it has failed; its counts are not final yet
    kClosing,  // it is drained; its memory is kept until it is read
    kRefused,  // it was not made, or has failed; it is not asked for again before `retry`
  };

  IpAddress peer;
  std::uint32_t tag = 0;  // the peer's tag
  std::uint32_t id = 0;
  std::uint16_t port = 0;  // the port by which the peer is reached
  Stage stage = Stage::kFree;
  Mover mover = Mover::kRc;       // the kind of the device
  std::uint8_t choice = 0;        // the number of the device among the port's, in their order
  bool reads_memory = true;       // LinkDevice::reads_memory()
  bool passed_on = false;         // kRefused: another entry says when to try again
  Reason reason = Reason::kNone;  // why the link is not up
  bool used = false;              // some connection has cut to a lane
  bool asked_by_peer = false;
  std::uint8_t failures = 0;  // failures in a row
  Instant retry{};
  Instant since{};              // when kUp or kEnding began
  tcp::Tcb* carrier = nullptr;  // the connection whose records set the link up

  // --- From kSettingUp on
  std::byte* memory = nullptr;  // a block of Memory; the peer writes it
  std::uint32_t bytes = 0;
  std::uint32_t lanes = 0;
  std::uint32_t listed = 0;  // number of places
  std::uint64_t peer_memory = 0;
  LanePlace* places = nullptr;  // a block of Memory, `lanes` of them
  Lane* ghosts = nullptr;       // `lanes` of them, touched only if there are ghosts
  std::array<std::uint16_t, LinkLayout::kSizes> free{kNoLane, kNoLane, kNoLane, kNoLane};
  std::uint16_t first_ghost = kNoLane;
  std::uint16_t latest = kNoLane;      // the lane whose program called last: a bulk sender's, if there is one
  Instant many_ghosts_since = kNever;  // since when there are many ghosts
  // Lanes are shared out in rounds (lane_sharing.cc).
  std::uint32_t round = 1;
  std::uint32_t full_round = 0;    // the last round in which the peer had no lane free
  std::uint32_t dry_round = 0;     // the last round that began without memory enough
  std::uint64_t memory_waits = 0;  // Engine's count of waits for memory at that time
  std::uint32_t unmet = 0;         // connections that found no lane free in this round
  // busy connections that had a small ring in the last round, when there was no larger one …
  std::uint32_t cramped = 0;
  std::uint32_t cramped_size = 0;  // … than of this size (LinkLayout), the smallest size among them
  Instant shared{};                // when this round began
  LinkEnd end = LinkEnd();

  [[nodiscard]] LinkLayout layout() const { return LinkLayout(bytes); }
  /// True in a round without memory enough. Lanes pin their send rings, so no connection gets one.
  [[nodiscard]] bool is_dry() const { return dry_round == round; }
  [[nodiscard]] bool is_current() const { return stage != Stage::kFree && stage < Stage::kEnding; }
};

/// A link that nobody asked for, for the report that says why.
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
  std::uint64_t used = 0;                      // bit i: links[i] is in use
  std::size_t registered = 0;                  // bytes of the arena, from Memory's beginning on, that devices may read
  std::array<std::uint32_t, kMovers> ready{};  // bit i: port i makes links of this mover
  std::uint32_t tag = 0;                       // the tag of this stack
  bool torn = false;                           // a process died inside the lock: all links must end
  bool owner_called = false;                   // there is work that only the owner can do

  /// Counts since the beginning, of the links of one mover.
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
