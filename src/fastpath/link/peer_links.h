// PeerLinks: which of a family's connections goes over which link, and how links come and go: asked for, set up, used,
// lost.
//
//   a framed connection to a peer without a link ──► LINK_REQ … on that connection, in the background
//   link up ──► each framed connection to that peer is offered a lane, and cuts to it
//   link fails ──► its connections go on over TCP; after a pause the next one asks again
//
// A peer is an address and the tag of its stack, so two stacks behind one address are two peers. The end that asks for
// a link chooses its number at random and tells it to nobody else. To know the number is the right to open lanes on the
// link.
//
// A port may have several devices, in order: when the first makes no link to a peer, the next is tried at once. Shared
// memory is asked for only if both tags name the same place. A connection that no device of both ends can carry is
// plain TCP from its first byte.
//
// What all processes of a family need lies in the arena (PeerTable). Queue pairs and devices belong to the process that
// owns the ports, which takes messages and writes. Another process puts its lane into the link's queue and wakes the
// owner.
//
// The caller of every function holds the shard's lock.
#pragma once

#include <cstdint>
#include <span>

#include "fastpath/framed/framed.h"
#include "fastpath/link/link_lanes.h"
#include "fastpath/link/link_owner.h"
#include "fastpath/link/link_reports.h"
#include "fastpath/link/link_table.h"
#include "fastpath/link/links_config.h"
#include "fastpath/link/peer_link.h"
#include "fastpath/link/short_calls.h"
#include "stack/memory/memory.h"

namespace bypass::fastpath {

class PeerLinks final : public Links {
 public:
  using Config = LinksConfig;

  /// To be made before the first connection. Without memory it makes no links: valid().
  PeerLinks(tcp::Engine& engine, Memory& memory, const Config& config);
  [[nodiscard]] bool valid() const { return table_.valid(); }
  [[nodiscard]] FramedTcp& framed() { return framed_; }
  [[nodiscard]] const Hooks& hooks() const { return framed_.hooks(); }
  [[nodiscard]] const PeerTable& table() const { return table_.shared(); }
  [[nodiscard]] PeerTable& table() { return table_.shared(); }
  /// The owner's part. Another process uses it to ask for what its connections need.
  [[nodiscard]] LinkOwner& owner() { return owner_; }
  [[nodiscard]] const LinkOwner& owner() const { return owner_; }
  [[nodiscard]] ShortCalls& short_calls() { return short_calls_; }

  /// To be called after a death inside the lock: LinkTable::rebuild().
  void rebuild() { table_.rebuild(engine_); }
  /// Whether a program's bytes were held back since the last call. Any thread may call it, without the lock.
  [[nodiscard]] bool take_held() { return lanes_.take_held(); }
  /// The link that carries a connection's bytes now, or null: for displays.
  [[nodiscard]] const PeerLink* link_of(const tcp::Tcb& tcb) const;
  /// Fails every link that is up, as a device's error would: for drills. Returns how many.
  std::size_t fail_all() { return table_.fail_all(); }

  // --- Links
  [[nodiscard]] bool wanted(const tcp::Tcb& tcb, const SynOption* theirs) override;
  void on_plain(const tcp::Tcb& tcb) override;
  [[nodiscard]] std::uint8_t note_of(const SynOption& theirs) const override;
  [[nodiscard]] std::span<const std::byte> memory(std::uint32_t link) override;
  [[nodiscard]] bool reads_ring(const tcp::Tcb& tcb, const Framed& framed) override;
  void on_change(Context& ctx, tcp::Tcb& tcb, Framed& framed) override;
  void on_link_record(Context& ctx, tcp::Tcb& tcb, Framed& framed, const Record& record,
                      std::span<const std::byte> body) override;
  [[nodiscard]] bool has_link_record(const tcp::Tcb& tcb, const Framed& framed) override;
  Record next_link_record(tcp::Tcb& tcb, Framed& framed, std::span<std::byte> body) override;
  bool on_gone(Context& ctx, tcp::Tcb& tcb, Framed& framed) override;

 private:
  using Stage = PeerLink::Stage;

  /// Whether this peer may be asked for links.
  [[nodiscard]] bool may_ask(const Path& path) const;
  /// Reports why no memory is shared with a peer of that tag. A peer on another host is not reported.
  void report_elsewhere(const tcp::Tcb& tcb, std::uint32_t tag);
  void look_for_lane(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void answer_offer(tcp::Tcb& tcb, Framed& framed);
  /// LinkTable::list(), which also reports a lack of lanes.
  bool list_place(PeerLink& link, tcp::Tcb& tcb, Framed& framed, LaneAddress& address);

  tcp::Engine& engine_;
  const Config config_;
  LinkTable table_;
  LinkReports reports_;
  FramedTcp framed_;
  LinkLanes lanes_;
  LinkOwner owner_;
  ShortCalls short_calls_;
};

}  // namespace bypass::fastpath
