// Process: everything that libbypass is in one process. It is built in one place and joined by references.
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
#include "fastpath/shm/rendezvous/directory.h"
#include "observe/region.h"
#include "os/clock.h"
#include "runtime/family/arena.h"
#include "runtime/ports/port_set.h"
#include "runtime/progress/progress.h"
#include "runtime/routing/decide.h"
#include "socket/shard.h"
#include "stack/context.h"
#include "stack/stack.h"

namespace bypass::runtime {

/// The budgets that the settings give for waits and buffers; a negative time means "forever".
socket::Budgets budgets_of(const Config& config);

struct Process {
  /// `wires`: those of the image before this one, if there are any.
  Process(const Config& c, observe::Region& r, PortSet& p, arena::Mapped& mapped, Stack& stack,
          socket::Wires* wires = nullptr)
      : config(c),
        region(r),
        arena(mapped),
        ports(p),
        shard(mapped.lock, stack, *mapped.memory, clock, budgets, wires),
        progress(shard, ports, mapped.spare, c.tick) {}

  const Config& config;
  observe::Region& region;
  const arena::Mapped& arena;  // for a search that asks whether what was allocated can be reached
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
  std::vector<int> socket_slots;  // the region's slots in use; only the progress thread touches them
  Instant sockets_published{};
  std::uint64_t shortages_told = 0;  // the stack's count of memory shortages when it was last told
  std::uint64_t conflicts_seen = 0;  // the stack's count of address conflicts when it was last looked at
  std::uint64_t cookies_told = 0;    // the stack's count of SYN cookies when it was last told
  std::array<bool, Context::kMaxPorts> conflicts_told{};
  fastpath::ReportedOnce told;           // reasons already reported where there can be no links
  std::atomic<bool> told_in_use{false};  // it was told that another process has a port, before the port was opened
  // a forked child makes a region of its own when there is something to tell
  std::atomic<bool> region_is_parents{false};
  /// The id of the thread that ends the process: 0 before, kEnded after. A futex.
  std::atomic<std::uint32_t> ending{0};
  /// In a keeper (family/keeper/keeper.h): whether it is to end soon, whatever is still undelivered. Null elsewhere.
  bool (*hurries)() = nullptr;
  static constexpr std::uint32_t kEnded = UINT32_MAX;
};

/// The process's graph. Null until start().
extern Process* g_process;
Process* process();

/// Opens the ports, once. From then on the progress thread serves them. False: the ports are not there.
bool open_ports(Process& p);
/// Opens the directory of ports that this user's processes serve by libbypass. After a change of user, that is another
/// directory.
void open_local_ports(Process& p);
/// Called in a forked child: forgets what belongs to its parent and may not be used as a copy. The descriptors stay
/// open.
void forget_parents(Process& p);
/// The process has no arena any more. From here on all of its sockets are the kernel's, for good.
void end_sharing();

/// Called at exit: polls until all that was written is acknowledged, FINs included, or until the setting's time is up.
void deliver_rest(Process& p);

}  // namespace bypass::runtime
