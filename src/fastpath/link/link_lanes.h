// LinkLanes: the lanes of a link and the turns of their connections: it writes what is due, gives lanes to connections
// and takes them back, and cleans up after connections that have gone.
//
// A link has fewer lanes than a peer may have connections, and few large rings: see share() (lane_sharing.cc). The
// caller holds the shard's lock.
// Tests: tests/fastpath/gather_test.cc, tests/fastpath/peer_links_many_test.cc.
#pragma once

#include <atomic>
#include <cstdint>

#include "fastpath/framed/framed.h"
#include "fastpath/link/link_table.h"
#include "fastpath/link/peer_link.h"

namespace bypass::fastpath {

class LinkLanes {
 public:
  LinkLanes(tcp::Engine& engine, FramedTcp& framed, LinkTable& table)
      : engine_(engine), framed_(framed), table_(table) {}

  // --- Turns
  void run_lane(Context& ctx, PeerLink& link, std::uint16_t number);
  void run_all(Context& ctx, PeerLink& link);
  /// Writes what is due. A message sent here may be the last thing that a connection waited for, so the connection has
  /// its turn.
  void write(Context& ctx, PeerLink& link, Link& mover);

  // --- Sharing (lane_sharing.cc)
  /// Whether the connection should look for a lane now. It looks at once the first time. Later it looks when it has
  /// something to send, and at most once a round while no lane is free.
  [[nodiscard]] static bool may_look(const PeerLink& link, const Framed& framed);
  /// Notes that the connection has left its lane, or was declined a lane.
  static void note_detached(PeerLink& link, Framed& framed);
  /// The owner calls it often. Once a round it takes lanes from quiet connections for those that lack one.
  void share(Context& ctx, PeerLink& link);

  // --- Connections that have gone
  /// Keeps the lane as a ghost until the peer has sent its last message on it. True: the send ring stays pinned.
  bool keep_ghost(PeerLink& link, Framed& framed);
  /// Removes the ghosts whose peers have nothing more to send. One kind never goes by itself: the connection was reset
  /// between an offer and its answer, so neither end can send what the other waits for. Too many of these end the link,
  /// and the next link has none.
  void sweep_ghosts(Context& ctx, PeerLink& link);

  // --- Bytes that are held back (Lane::is_gathering). What releases them comes over the link. The link must be polled
  // soon, although the program may make no more calls.
  void note_held() {
    if (!held_.load(std::memory_order_relaxed)) held_.store(true, std::memory_order_relaxed);
  }
  /// Whether bytes were held back since the last call. Any thread may call it, without the lock.
  [[nodiscard]] bool take_held() { return held_.exchange(false, std::memory_order_relaxed); }

 private:
  tcp::Engine& engine_;
  FramedTcp& framed_;
  LinkTable& table_;
  std::atomic<bool> held_{false};
};

}  // namespace bypass::fastpath
