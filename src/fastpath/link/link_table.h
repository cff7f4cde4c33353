// LinkTable: a family's links in the arena: found, given memory, and their lanes' places handed out.
//
// It is the part that every process of the family does, the owner of the ports or not. What only the owner does is
// LinkOwner's. With the shard's lock held.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "fastpath/framed/framed.h"
#include "fastpath/link/links_config.h"
#include "fastpath/link/peer_link.h"
#include "stack/memory/memory.h"
#include "stack/tcp/engine.h"

namespace bypass::fastpath {

class LinkTable {
 public:
  using Stage = PeerLink::Stage;

  /// Without memory for it there is none: valid().
  LinkTable(Memory& memory, const LinksConfig& config);
  [[nodiscard]] bool valid() const { return table_ != nullptr; }
  [[nodiscard]] PeerTable& shared() { return *table_; }
  [[nodiscard]] const PeerTable& shared() const { return *table_; }
  [[nodiscard]] std::size_t index_of(const PeerLink& link) const {
    return static_cast<std::size_t>(&link - table_->links.data());
  }

  // --- Links
  [[nodiscard]] PeerLink* find(std::uint32_t id);
  /// The one that is there or under way; else the one that says when to try again; null: there has been none.
  [[nodiscard]] PeerLink* link_to(const tcp::Tcb& tcb, const Framed& framed);
  /// A free entry, else the oldest of those that `idle` says only tell when to try again. Null: there is none.
  template <typename Idle>
  PeerLink* take_entry(const IpAddress& peer, std::uint32_t tag, std::uint16_t port, Idle idle);
  void free_entry(PeerLink& link);
  /// Links that have memory here, and of those the ones that peers have asked for and that are not up.
  struct Held {
    std::uint32_t of_peer = 0, of_address = 0, asked = 0, asked_by_address = 0;
  };
  [[nodiscard]] Held held_by(const IpAddress& peer, std::uint32_t tag) const;
  /// Nothing more goes over it. The owner ends it at its next look.
  void fail(PeerLink& link, Reason why);
  /// Every link that is up, as a device's error would: for drills. Returns how many.
  std::size_t fail_all();

  // --- Their memory
  /// `at_ease`: the link's share; else the least that a link can have. A smaller one where the arena has no such block
  /// left. False: it has none.
  bool allocate(PeerLink& link, bool at_ease);
  void release_memory(PeerLink& link);
  /// What devices may come to read of the arena.
  [[nodiscard]] std::span<const std::byte> blocks() const { return memory_.blocks(); }
  [[nodiscard]] std::size_t most_block_bytes() const { return memory_.most_block_bytes(); }
  /// Whether devices can read a send ring of so many bytes, wherever it may come to lie before it is pinned.
  [[nodiscard]] bool may_read(std::size_t ring_bytes) const;
  /// Whether devices can read this one, as far as they need to.
  [[nodiscard]] bool reads_ring(const PeerLink& link, const tcp::Tcb& tcb) const;

  // --- Places of lanes
  /// Gives the connection a number and a ring: the largest that is free. False: none is.
  bool list(PeerLink& link, tcp::Tcb& tcb, Framed& framed, LaneAddress& address);
  void unlist(PeerLink& link, Framed& framed);
  void free_place(PeerLink& link, std::uint16_t number);
  /// Null: it has gone, or nobody has this number.
  [[nodiscard]] static tcp::Tcb* connection_of(const PeerLink& link, std::uint16_t number);
  /// Whether a connection still has something to come over it. A peer that has ended all of them, and then itself, has
  /// taken nothing away.
  [[nodiscard]] static bool is_missed(PeerLink& link);

  /// After a death inside the lock, between Memory's begin_rebuild() and finish_rebuild(), the connections being made
  /// anew already: links are over, and the owner's next poll() ends them.
  void rebuild(tcp::Engine& engine);

 private:
  PeerLink* take_entry_from(PeerLink* idle, const IpAddress& peer, std::uint32_t tag, std::uint16_t port);
  [[nodiscard]] std::uint32_t next_link_bytes() const;
  bool allocate_bytes(PeerLink& link, std::uint32_t bytes);

  Memory& memory_;
  PeerTable* table_;
  std::uint32_t link_memory_;  // LinksConfig's
};

template <typename Idle>
PeerLink* LinkTable::take_entry(const IpAddress& peer, std::uint32_t tag, std::uint16_t port, Idle idle) {
  PeerLink* taken = nullptr;
  for (PeerLink& link : table_->links) {
    if (link.stage != Stage::kFree && !idle(link)) continue;
    if (taken == nullptr || link.stage == Stage::kFree || (taken->stage != Stage::kFree && link.retry < taken->retry))
      taken = &link;
    if (taken->stage == Stage::kFree) break;
  }
  return take_entry_from(taken, peer, tag, port);
}

}  // namespace bypass::fastpath
