// LinkTable: a family's links in the arena. It finds them, gives them memory, and hands out the places of their lanes.
//
// Every process of the family uses it, whether it owns the ports or not. LinkOwner does what only the owner may do. The
// caller holds the shard's lock.
// Tests: tests/fastpath/peer_links_many_test.cc, tests/stack/tcp/rebuild_test.cc.
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

  /// If there is no memory for the table, valid() is false.
  LinkTable(Memory& memory, const LinksConfig& config);
  [[nodiscard]] bool valid() const { return table_ != nullptr; }
  [[nodiscard]] PeerTable& shared() { return *table_; }
  [[nodiscard]] const PeerTable& shared() const { return *table_; }
  [[nodiscard]] std::size_t index_of(const PeerLink& link) const {
    return static_cast<std::size_t>(&link - table_->links.data());
  }

  // --- Links
  [[nodiscard]] PeerLink* find(std::uint32_t id);
  /// The link to that peer that is up or under way; if there is none, the entry that says when to try again; null if
  /// there has been no link.
  [[nodiscard]] PeerLink* link_to(const tcp::Tcb& tcb, const Framed& framed);
  /// A free entry, or the oldest entry for which `idle` is true (it only says when to try again). Null if neither
  /// exists.
  template <typename Idle>
  PeerLink* take_entry(const IpAddress& peer, std::uint32_t tag, std::uint16_t port, Idle idle);
  void free_entry(PeerLink& link);
  /// How many links have memory here, and how many of these were asked for by peers and are not up yet.
  struct Held {
    std::uint32_t of_peer = 0, of_address = 0, asked = 0, asked_by_address = 0;
  };
  [[nodiscard]] Held held_by(const IpAddress& peer, std::uint32_t tag) const;
  /// Stops the use of the link. The owner ends it at its next look.
  void fail(PeerLink& link, Reason why);
  /// Fails every link that is up, as a device's error would: for drills. Returns how many.
  std::size_t fail_all();

  // --- Their memory
  /// Gives a link its memory. `at_ease`: the link's share; otherwise the least that a link can have. If the arena has
  /// no such block left, a smaller one. False: no block is left.
  bool allocate(PeerLink& link, bool at_ease);
  void release_memory(PeerLink& link);
  /// The ranges of the arena that devices may read.
  [[nodiscard]] std::span<const std::byte> blocks() const { return memory_.blocks(); }
  [[nodiscard]] std::size_t most_block_bytes() const { return memory_.most_block_bytes(); }
  /// Whether devices can read a send ring of so many bytes, wherever it lies until it is pinned.
  [[nodiscard]] bool may_read(std::size_t ring_bytes) const;
  /// Whether the link's device can read this connection's send ring, as far as it needs to.
  [[nodiscard]] bool reads_ring(const PeerLink& link, const tcp::Tcb& tcb) const;

  // --- Places of lanes
  /// Gives the connection a number and the largest free ring. False: no ring is free.
  bool list(PeerLink& link, tcp::Tcb& tcb, Framed& framed, LaneAddress& address);
  void unlist(PeerLink& link, Framed& framed);
  void free_place(PeerLink& link, std::uint16_t number);
  /// Null: the connection has gone, or no lane has this number.
  [[nodiscard]] static tcp::Tcb* connection_of(const PeerLink& link, std::uint16_t number);
  /// Whether a connection still expects something over the link. If the peer has ended all its connections and then
  /// itself, nothing was lost.
  [[nodiscard]] static bool is_missed(PeerLink& link);

  /// To be called after a death inside the lock, between Memory's begin_rebuild() and finish_rebuild(). The connections
  /// are rebuilt already. All links are over, and the owner's next poll() ends them.
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
