// LinkLanes: the lanes of a link and their connections' turns: what is written, which lane goes to whom, and what is
// left of connections that have gone.
//
// A link has fewer lanes than a peer may have connections, and few large rings: share() (lane_sharing.cc).
// With the shard's lock held.
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
  /// Writes what is due. What is said on the link may be the last that a connection has waited for: it has its turn.
  void write(Context& ctx, PeerLink& link, Link& mover);

  // --- Sharing (lane_sharing.cc)
  /// Whether the connection is to look for a lane. The first time it looks at once. Later it looks when it has
  /// something to say, and once a round at most while there is no lane.
  [[nodiscard]] static bool may_look(const PeerLink& link, const Framed& framed);
  /// It is off the lane, or was declined one.
  static void note_detached(PeerLink& link, Framed& framed);
  /// The owner's, often: once a round lanes go from connections that are quiet to those that lack one.
  void share(Context& ctx, PeerLink& link);

  // --- Connections that have gone
  /// Its lane stays as a ghost, until the peer has said its last word on it. True: its send ring stays pinned.
  bool keep_ghost(PeerLink& link, Framed& framed);
  /// Those whose peers have nothing more to say go. One whose connection was reset between an offer and its answer
  /// never does, as neither end can say to the other what it waits for: too many of them end the link, and the next one
  /// is empty.
  void sweep_ghosts(Context& ctx, PeerLink& link);

  // --- Bytes that are held back (Lane::is_gathering). What lets them go comes over the link, so that is to be looked
  // at soon though the program may call no more.
  void note_held() {
    if (!held_.load(std::memory_order_relaxed)) held_.store(true, std::memory_order_relaxed);
  }
  /// Whether there have been any since the last call. By any thread, without the lock.
  [[nodiscard]] bool take_held() { return held_.exchange(false, std::memory_order_relaxed); }

 private:
  tcp::Engine& engine_;
  FramedTcp& framed_;
  LinkTable& table_;
  std::atomic<bool> held_{false};
};

}  // namespace bypass::fastpath
