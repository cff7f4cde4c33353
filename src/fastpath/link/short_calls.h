// ShortCalls: of a connection whose two directions are on a lane, and that has nothing to say over TCP. They need no
// time and bring about no event; where they come to more than that, take_turn() follows.
//
// With the shard's lock held, by the process that has the ports.
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

  /// Empty: it is not so, or the link is another process's.
  [[nodiscard]] ShortPath path_of(tcp::Tcb& tcb);

  enum class Glance : std::uint8_t {
    kNothing,
    kBytes,  // this connection has bytes; nobody has been told of them yet
    kOther,  // something else, which finish_glance() is for
  };
  /// One look at the link alone.
  Glance glance(const ShortPath& path);
  void finish_glance(Context& ctx, const ShortPath& path);

  /// What the connection has to be read, up to `most`; empty: nothing. Nullopt: it is not in one piece of the ring.
  [[nodiscard]] static std::optional<std::span<const std::byte>> readable(const ShortPath& path, std::size_t most);
  /// False: take_turn() is to follow.
  [[nodiscard]] static bool consume(const ShortPath& path, std::size_t bytes);
  /// So many bytes would go at once, in one message, and there is room for them.
  [[nodiscard]] bool may_write(const ShortPath& path, std::size_t bytes) const;
  /// Then, once they are committed to tcp::Engine.
  void write(const ShortPath& path, std::size_t bytes);
  void take_turn(Context& ctx, const ShortPath& path);

 private:
  FramedTcp& framed_;
  LinkTable& table_;
  LinkLanes& lanes_;
  LinkOwner& owner_;
  // Of a glance()
  std::array<Arrival, LinkEnd::kMostArrivals> found_{};
  std::size_t found_count_ = 0;
};

}  // namespace bypass::fastpath
