// A shard's turn, on a wire whose port reads the arena.
#include <gtest/gtest.h>

#include "socket/world.h"
#include "stack/tcp/core.h"

namespace bypass::test {
namespace {

using namespace std::chrono_literals;

// Turns of both ends until `done` holds.
bool run_until(World& world, const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (!done() && std::chrono::steady_clock::now() < end) {
    world.shard().poll();
    world.run_peer_once();
  }
  return done();
}

TEST(Shard, LargeWrite_IsUnpinnedWhenItHasLeft) {
  World& world = World::get();
  tcp::Engine& tcp = world.shard().stack().tcp();
  ASSERT_TRUE(world.peer().tcp().listen({IpAddress::from_v4(kPeers), 80}, 8, {}, nullptr).ok());
  tcp::Tcb* tcb = nullptr;
  {
    const socket::Guard guard(world.shard());
    tcb = *tcp.connect(world.shard().context(), {}, {IpAddress::from_v4(kPeers), 80}, {}, nullptr);
  }
  ASSERT_TRUE(run_until(world, [&] { return tcp.state(*tcb) == tcp::State::kEstablished; }));
  {
    const socket::Guard guard(world.shard());
    const auto room = tcp.reserve(*tcb, 2000);
    tcp.commit(world.shard().context(), *tcb, room->size(), false);
    EXPECT_TRUE(tcb->ring.pinned()) << "frames refer to it";
  }
  EXPECT_FALSE(tcb->ring.pinned());
  ASSERT_TRUE(run_until(world, [&] { return tcp.unacknowledged(*tcb) == 0; }));
  const socket::Guard guard(world.shard());
  tcp.abort(world.shard().context(), *tcb);
  EXPECT_EQ(tcp.impl().tcbs.size(), 0U) << "goes back to the slab";
}

}  // namespace
}  // namespace bypass::test
