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

  // Each call holds the lock. Does one of the things that a program does, at random: send, read, let time pass.
  void act(std::mt19937& random);
  /// The same with connections that come and go beside the established ones.
  void act_in_a_crowd(std::mt19937& random);
  /// Lets time pass: timers, packets under way, events.
  void turn(Duration step);
  /// Called after a death: rebuilds everything. Returns the connection that the dead process was changing.
  const void* rebuild();
  /// Sends and reads until nothing is under way. Every byte is checked.
  void settle();
  /// Opens lost connections again. Returns how many were lost that are not `named`'s. `count`: how many in total.
  std::size_t replace_lost(const void* named, std::size_t& count);

  /// The connections that hold blocks, for the message of a failure.
  [[nodiscard]] std::string holders();
  /// The number of wrong bytes that any process has seen.
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
