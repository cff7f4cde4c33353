// Process: everything that libbypass is in one process, built in one place and joined by references.
// Private to src/runtime.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/config.h"
#include "fastpath/link/peer_links.h"
#include "fastpath/link/reported_once.h"
#include "fastpath/shm/directory.h"
#include "observe/region.h"
#include "os/clock.h"
#include "runtime/family/arena.h"
#include "runtime/ports.h"
#include "runtime/progress.h"
#include "runtime/routing/decide.h"
#include "socket/shard.h"
#include "stack/context.h"
#include "stack/stack.h"

namespace bypass::runtime {

/// What the settings say of waits and buffers; "forever" is a negative time.
socket::Budgets budgets_of(const Config& config);

struct Process {
  Process(const Config& c, observe::Region& r, PortSet& p, arena::Mapped& mapped, Stack& stack)
      : config(c),
        region(r),
        arena(mapped),
        ports(p),
        shard(mapped.lock, stack, *mapped.memory, clock, budgets),
        progress(shard, ports, mapped.spare, c.tick) {}

  const Config& config;
  observe::Region& region;
  const arena::Mapped& arena;  // for who looks whether what was allocated can be reached
  PortSet& ports;
  Decider decider{config, ports.network()};
  socket::Clock clock;
  const socket::Budgets budgets = budgets_of(config);
  socket::Shard shard;
  Progress progress;
  fastpath::shm::Directory local_ports;
  std::uint32_t place = 0;  // place_number() of the run directory; 0: nothing is shared
  const std::vector<Prefix> rdma_peers = config.rules.rdma_peers();
  std::unique_ptr<fastpath::PeerLinks> links;
  std::vector<int> socket_slots;  // of the region; the progress thread's
  Instant sockets_published{};
  std::uint64_t shortages_told = 0;  // of memory, in the stack's counters
  std::uint64_t conflicts_seen = 0;  // of addresses, there
  std::uint64_t cookies_told = 0;    // SYN cookies, there
  std::array<bool, Context::kMaxPorts> conflicts_told{};
  fastpath::ReportedOnce told;                 // where there can be no links
  std::atomic<bool> told_in_use{false};        // a port of another process's, before it is opened
  std::atomic<bool> region_is_parents{false};  // a forked child's is made when there is something to tell
  /// The thread that ends the process, 0 before, kEnded after. A futex.
  std::atomic<std::uint32_t> ending{0};
  static constexpr std::uint32_t kEnded = UINT32_MAX;
};

/// Null until start().
Process* process();

/// Opens the ports, once; from then on the progress thread minds them. False: they are not there.
bool open_ports(Process& p);
/// Which ports of this user's processes libbypass serves: another one's directory after a change of user.
void open_local_ports(Process& p);
/// In a forked child: what is its parent's own, and no copy of it may be used. Its descriptors stay open.
void forget_parents(Process& p);
/// The process has no arena any more: from here on all of its sockets are the kernel's, for good.
void end_sharing();

/// At exit: polls until all that was written is acknowledged, FINs included, or the setting's time is up.
void deliver_rest(Process& p);

}  // namespace bypass::runtime
