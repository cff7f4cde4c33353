// PeerLinks: who of a family's connections goes over which link, and the links' own life: asked for, set up, used,
// lost.
//
//   a framed connection to a peer without a link ──► LINK_REQ … on that connection, in the background
//   link up ──► each framed connection to that peer is offered a lane, and cuts to it
//   link fails ──► its connections go on over TCP; after a pause the next one asks again
//
// A peer is an address and the tag of its stack, so that two stacks behind one address are two peers. A link's number
// is chosen at random by who asks for it and told to nobody else: to know it is the right to open lanes on it.
//
// A port may have several devices, in their order: when the first makes no link to a peer, the next is tried at once.
// Shared memory is asked for only where both tags name the same place, and a connection that no device of both ends can
// carry is plain TCP from its first byte.
//
// What all processes of a family need lies in the arena (PeerTable); queue pairs and devices are the owner's of the
// ports, who takes messages and writes. Another process leaves its lane in the link's queue and has the owner called.
//
// Everything is called with the shard's lock held.
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

  /// Before the first connection. Without memory it makes no links: valid().
  PeerLinks(tcp::Engine& engine, Memory& memory, const Config& config);
  [[nodiscard]] bool valid() const { return table_.valid(); }
  [[nodiscard]] FramedTcp& framed() { return framed_; }
  [[nodiscard]] const Hooks& hooks() const { return framed_.hooks(); }
  [[nodiscard]] const PeerTable& table() const { return table_.shared(); }
  /// The part of the owner of the ports; of another process what its connections ask for.
  [[nodiscard]] LinkOwner& owner() { return owner_; }
  [[nodiscard]] const LinkOwner& owner() const { return owner_; }
  [[nodiscard]] ShortCalls& short_calls() { return short_calls_; }

  /// After a death inside the lock: LinkTable::rebuild().
  void rebuild() { table_.rebuild(engine_); }
  /// Whether a program's bytes have been held back since the last call. By any thread, without the lock.
  [[nodiscard]] bool take_held() { return lanes_.take_held(); }
  /// The link that carries a connection's bytes now, or null: for who shows it.
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
  /// That another host shares no memory needs no word.
  void tell_place(const tcp::Tcb& tcb, std::uint32_t tag);
  void look_for_lane(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void answer_offer(tcp::Tcb& tcb, Framed& framed);
  /// LinkTable::list(); that there is no lane is said.
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
