// World: a process with the socket layer over one shard. A cable joins the shard's port to a second stack, the peer.
// The process's address is 10.9.0.1, the peer's 10.9.0.2. Connections to the own address are looped inside. There is
// one World in a test process.
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
  /// The settings; a case may change them.
  socket::Budgets& budgets() { return budgets_; }
  CablePort& port() { return port_; }
  CablePort& peer_port() { return peer_port_; }
  /// The peer's stack. `peer_step` drives it, in the thread that calls run_peer_once() or in a thread of its own.
  Stack& peer() { return *peer_stack_; }
  /// The time is that of the call.
  Context& peer_context() {
    peer_context_.now = clock_.now();
    return peer_context_;
  }
  /// Called after a case: undoes what the case may have set.
  void put_back();
  /// Looks once at the peer's port, runs its timers and sends its batch.
  void run_peer_once();
  /// Runs the peer in a thread, and calls `step` after each look, until the guard is destroyed.
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
  /// Does what the progress thread does in a real process. Sleepers rely on it when the thread that watched the wires
  /// stops watching and does not come back.
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
