#include "runtime/family/rights/hand_back.h"

#include <atomic>
#include <cstdint>

#include "os/log/log.h"
#include "runtime/family/rights/spare.h"
#include "runtime/host.h"
#include "runtime/process_graph.h"
#include "socket/family/kin.h"
#include "socket/family/receivers.h"

namespace bypass::runtime {

namespace {

std::atomic<bool> g_recalled{false};

void hear(void* process) {
  socket::Shard& shard = static_cast<Process*>(process)->shard;
  while (spare::await_recall()) {
    g_recalled.store(true, std::memory_order_release);
    const socket::Guard guard(shard);
    socket::call_driver();
  }
}

}  // namespace

void hear_recalls(Process& process) {
  std::uint64_t thread = 0;
  if (run_thread("bypass-recalls", hear, &process, &thread) != 0)
    BYPASS_LOG_WARN("no thread hears whether the ports are asked for by processes that have kept their rights");
}

bool hand_back_if_recalled(Process& process) {
  if (!g_recalled.exchange(false, std::memory_order_acq_rel)) return false;
  socket::Guard guard(process.shard);
  if (socket::is_any_used(guard)) return false;
  socket::reset_waiting(guard);
  process.shard.wires().lent.store(true, std::memory_order_release);  // nobody of the family opens the ports
  BYPASS_LOG_INFO("the ports go back to the processes that have kept their rights");
  return true;
}

}  // namespace bypass::runtime
