// A ForkTree: one Stack in memory that forked processes share, talking to itself over many established
// connections, so that everything a connection has lies in the arena. Time is virtual and shared, too.
//
// What a byte of a stream must be follows from the connection, the direction and the stream offset, and both
// offsets are read from the connection itself: writers and readers keep no state that a death could spoil.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "family/fixture.h"
#include "stack/no_wire.h"
#include "stack/stack.h"
#include "stack/tcp/tcb.h"

namespace bypass::test {

using namespace std::chrono_literals;

class ForkTree {
 public:
  static constexpr std::size_t kPairs = 48;
  static constexpr std::size_t kStrangers = 16;
  static constexpr std::size_t kRegion = std::size_t{64} << 20;

  ForkTree();

  socket::Household& household() { return household_; }
  socket::ShardLock& lock() { return household_.lock; }
  tcp::Engine& tcp() { return stack_->tcp(); }
  Memory& memory() { return *memory_; }

  // Each with the lock held.
  /// One of the things that a program does, by chance: send, read, let time go on.
  void act(std::mt19937& random);
  /// The same among connections that come and go beside the established ones.
  void act_in_a_crowd(std::mt19937& random);
  /// Time goes on; timers, packets on their way, events.
  void turn(Duration step);
  /// After a death: everything anew. Returns the connection that the dead one was changing.
  const void* rebuild();
  /// Sends and reads until nothing is on its way; every byte is checked.
  void settle();
  /// Opens what has been lost again. Returns how many connections were lost without being `named`'s, and in
  /// `count` how many altogether.
  std::size_t replace_lost(const void* named, std::size_t& count);

  /// Which connections hold blocks, for a failure's message.
  [[nodiscard]] std::string holders();
  /// Wrong bytes seen, by any process.
  [[nodiscard]] std::uint32_t wrong() { return shared_->wrong; }
  [[nodiscard]] std::uint64_t moved() { return shared_->moved; }

 private:
  struct Pair {
    tcp::Tcb* end[2] = {};
    std::uint32_t life = 0;
  };
  /// Seen by all processes, outside of Memory.
  struct Shared {
    std::int64_t now;
    std::uint64_t moved;
    std::uint32_t wrong;
    Pair pairs[kPairs];
    tcp::Listener* listener;
    tcp::Listener* strangers_listener;
    tcp::Tcb* strangers[kStrangers];
    std::byte region[kRegion] __attribute__((aligned(4096)));
  };

  static std::uint8_t byte_at(const Pair& pair, std::size_t pair_index, unsigned from, std::uint64_t offset);
  void open(Pair& pair);
  void send(std::size_t pair, unsigned from, std::size_t bytes);
  void receive(std::size_t pair, unsigned at, std::size_t bytes);
  [[nodiscard]] bool lost(const Pair& pair);
  [[nodiscard]] bool quiet();
  void give_up_reservations();
  void come_and_go(std::mt19937& random);
  void read_all();

  socket::Household household_;
  socket::Shared<Shared> shared_;
  NoWire wire_;
  Memory* memory_;
  Stack* stack_;
  Context context_;
};

}  // namespace bypass::test
