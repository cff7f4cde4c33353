// A shard's turn, on a wire whose port reads the arena.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "socket/world.h"
#include "stack/tcp/core.h"

namespace bypass::test {
namespace {

using namespace std::chrono_literals;

// Gives turns to both ends until `done` holds.
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

/// A shard of its own, of a process that has just opened a port whose link is up.
struct Opened {
  explicit Opened(bool known) {
    CablePort::join(port, other);
    const Prefix prefix{IpAddress::from_v4(kOurs), 24};
    EXPECT_TRUE(stack.set_interface(0, {port.mac(), 1500, {&prefix, 1}, {}}).ok());
    EXPECT_TRUE(family.attach(family_table));
    shard.wires().known = known;
    port.count_link_up();
    shard.add_port(&port, 0);
  }

  ~Opened() { munmap(arena, kArena); }

  static constexpr std::size_t kArena = std::size_t{16} << 20;
  void* const arena = mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Memory& memory = *Memory::create(arena, kArena, kArena);
  Stack& stack = *Stack::create(memory, {});
  socket::FamilyTable family_table{};
  socket::LockState lock_state{};
  socket::Family family;
  socket::ShardLock lock{lock_state, family};
  socket::Clock clock;
  CablePort port{21}, other{22};
  socket::Budgets budgets;
  socket::Shard shard{lock, stack, memory, clock, budgets};
};

std::uint64_t repeated_syns(Opened& opened) {
  {
    const socket::Guard guard(opened.shard);
    EXPECT_TRUE(
        opened.stack.tcp().connect(opened.shard.context(), {}, {IpAddress::from_v4(kPeers), 80}, {}, nullptr).ok());
  }
  opened.shard.poll();
  opened.shard.poll();
  return opened.stack.counters().tcp_retransmits;
}

// A frame that a port sends while it is open and up is not lost. So the first SYN is sent once.
TEST(Shard, FreshPortThatIsUp_RepeatsNothing) {
  auto opened = std::make_unique<Opened>(false);
  EXPECT_EQ(repeated_syns(*opened), 0U);
  opened->port.count_link_up();
  opened->shard.poll();
  EXPECT_EQ(opened->stack.counters().tcp_retransmits, 1U) << "it has been away";
}

TEST(Shard, PortThatAnotherProcessHad_RepeatsWhatItMayHaveLost) {
  auto opened = std::make_unique<Opened>(true);
  EXPECT_EQ(repeated_syns(*opened), 1U);
}

}  // namespace
}  // namespace bypass::test
