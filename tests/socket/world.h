// World: a process with the socket layer over one shard, whose port is joined to a second stack (the peer) by a
// cable. Its own address is 10.9.0.1, the peer's 10.9.0.2; connections to its own address are looped inside.
// One a test process.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "os/kernel.h"
#include "socket/api.h"
#include "socket/cable.h"
#include "socket/policy.h"
#include "socket/shard.h"

namespace bypass::test {

inline constexpr std::uint32_t kOurs = 0x0a090001, kPeers = 0x0a090002;

class World {
 public:
  static World& get();

  socket::Shard& shard() { return *shard_; }
  /// What the settings say; a case may change it.
  socket::Budgets& budgets() { return budgets_; }
  CablePort& port() { return port_; }
  CablePort& peer_port() { return peer_port_; }
  /// The peer's stack, driven by `peer_step` from the one that calls run_peer_once(), or by a thread.
  Stack& peer() { return *peer_stack_; }
  /// At the time of the call.
  Context& peer_context() {
    peer_context_.now = clock_.now();
    return peer_context_;
  }
  /// After a case: what it may have set is as World made it.
  void put_back();
  /// One look at the peer's port, its timers, its transmit batch.
  void run_peer_once();
  /// Runs the peer in a thread, calling `step` after each look, until the guard goes.
  class PeerThread {
   public:
    PeerThread(World& world, std::function<void()> step);
    ~PeerThread();

   private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
  };

 private:
  World();
  static socket::Budgets plain_budgets();
  /// The progress thread's part in a real process: sleepers count on it when the one who watched the wires gets up and
  /// does not come back.
  void look_after_sleepers();

  socket::Clock clock_;
  CablePort port_{1}, peer_port_{2};
  socket::Shard* shard_ = nullptr;
  Stack* peer_stack_ = nullptr;
  Context peer_context_;
  socket::Policy policy_;
  socket::Budgets budgets_ = plain_budgets();
  const socket::Kernel* kernel_ = nullptr;
};

}  // namespace bypass::test
