#include "runtime/family/rights/turn.h"

#include <limits.h>

#include <cstdint>

#include "os/os.h"
#include "runtime/process_graph.h"
#include "socket/family/wires.h"
#include "socket/shard.h"

namespace bypass::runtime {

namespace {

std::uint64_t own_name(Process& p) {
  return socket::Wires::name(p.shard.family().slot(), p.shard.family().incarnation());
}

}  // namespace

void tell_change(arena::Spare& spare) {
  spare.changes.fetch_add(1, std::memory_order_acq_rel);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&spare.changes), INT_MAX);
}

void take_turn(Process& p) {
  arena::Spare& spare = p.arena.spare;
  constexpr std::int64_t kLook = 20'000'000;  // ns
  for (;;) {
    const std::uint32_t seen = spare.changes.load(std::memory_order_acquire);
    {
      const socket::Guard guard(p.shard);
      const std::uint64_t other = spare.founder;
      const bool taken =
          other != 0 && p.shard.family().alive(socket::Wires::slot_in(other), static_cast<std::uint32_t>(other));
      if (!taken) spare.founder = own_name(p);
      if (!taken) return;
    }
    // The process that has the turn may wait until the ports are closed, and no progress thread closes them here.
    if (PortSet::lent(p.shard)) p.ports.lend(p.shard);
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&spare.changes), seen, kLook);
  }
}

void end_turn(Process& p) {
  {
    const socket::Guard guard(p.shard);
    p.arena.spare.founder = 0;
  }
  tell_change(p.arena.spare);
}

}  // namespace bypass::runtime
