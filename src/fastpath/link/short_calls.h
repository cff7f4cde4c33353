// ShortCalls: short reads and writes of a connection whose two directions are on a lane, and that has nothing to send
// over TCP. They need no time and post no event. If more has to be done, take_turn() follows.
//
// The caller holds the shard's lock, and its process owns the ports.
// Tests: tests/fastpath/peer_links_calls_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fastpath/link/link_lanes.h"
#include "fastpath/link/link_owner.h"
#include "fastpath/link/link_table.h"

namespace bypass::fastpath {

struct ShortPath {
  tcp::Tcb* tcb = nullptr;
  Framed* framed = nullptr;
  PeerLink* link = nullptr;
  Link* mover = nullptr;
  explicit operator bool() const { return tcb != nullptr; }
};

class ShortCalls {
 public:
  ShortCalls(FramedTcp& framed, LinkTable& table, LinkLanes& lanes, LinkOwner& owner)
      : framed_(framed), table_(table), lanes_(lanes), owner_(owner) {}

  /// Empty: the connection is in another state, or its link belongs to another process.
  [[nodiscard]] ShortPath path_of(tcp::Tcb& tcb);

  enum class Glance : std::uint8_t {
    kNothing,
    kBytes,  // this connection has bytes; no event was posted for them yet
    kOther,  // something else has come: finish_glance() takes it
  };
  /// Polls the link once.
  Glance glance(const ShortPath& path);
  void finish_glance(Context& ctx, const ShortPath& path);

  /// What the connection can read, up to `most`; empty: nothing. Nullopt: the bytes are not in one piece of the ring.
  [[nodiscard]] static std::optional<std::span<const std::byte>> readable(const ShortPath& path, std::size_t most);
  /// The program has taken `bytes`. False: call take_turn().
  [[nodiscard]] static bool consume(const ShortPath& path, std::size_t bytes);
  /// Whether so many bytes would leave at once in one message, and there is room for them.
  [[nodiscard]] bool may_write(const ShortPath& path, std::size_t bytes) const;
  /// Writes them, once they are committed to tcp::Engine.
  void write(const ShortPath& path, std::size_t bytes);
  void take_turn(Context& ctx, const ShortPath& path);

 private:
  FramedTcp& framed_;
  LinkTable& table_;
  LinkLanes& lanes_;
  LinkOwner& owner_;
  // What the last glance() found
  std::array<Arrival, LinkEnd::kMostArrivals> found_{};
  std::size_t found_count_ = 0;
};

}  // namespace bypass::fastpath
