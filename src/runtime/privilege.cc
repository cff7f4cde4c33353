#include "runtime/privilege.h"

#include "runtime/inside.h"
#include "runtime/log.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/startup.h"
#include "runtime/undisturbed.h"
#include "socket/in_handler.h"
#include "socket/kin.h"
#include "socket/socket.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

void stay(Process& p, const char* why) {
  BYPASS_LOG_INFO("rights are given up, and memory stays shared: %s", why);
  p.region.why(Reason::kSharesWithLess, -1, 0, {}, why);
}

}  // namespace

RightsChange begin_change() {
  RightsChange change;
  Process* const p = process();
  if (p == nullptr || !accelerates()) return change;
  const Inside inside;
  change.changes = true;
  change.leaves = p->shard.family().has_living_kin();
  if (socket::is_in_handler()) {  // what it has interrupted may be inside the arena, or malloc
    if (change.leaves) stay(*p, "a signal handler gives them up");
    return {};
  }
  // After it the folder may be closed to the process.
  if (change.leaves && p->region_is_parents.exchange(false)) renew_region();
  if (change.leaves && p->config.trust == Trust::kFamily) {
    stay(*p, "BYPASS_TRUST=family");
    return {};
  }
  if (change.leaves && socket::refers_to_wire()) {
    stay(*p, "the process has sockets on a port");
    return {};
  }
  return change;
}

void give_back(socket::File& file, int fd, const RightsChange& change) {
  const bool is_shared = change.leaves && socket::is_shared_with_kin(file);
  const bool was_local = socket::is_local(file);
  if (!is_shared && !was_local) return;
  socket::leave_shared_memory(file);
  if (was_local) record_why(fd, static_cast<unsigned>(Reason::kGaveUpRights), "");
}

bool leave_arena(RightsChange& change) {
  Process& p = *process();
  const Inside inside;
  const Undisturbed undisturbed;
  change.progressed = p.progress.runs();
  p.progress.stop();
  p.local_ports = {};
  if (!change.leaves) return true;
  if (!p.config.ports.empty())
    p.ports.give_up(p.shard, "the process has given up rights that others of its family have; the port is theirs");
  std::string problem;
  (void)p.shard.lock().hold_for_exec();
  const auto last_words = [](const arena::Mapped& mapped) {
    mapped.family.die_to_others();
    mapped.lock.let_others_in();
  };
  if (arena::renew(p.arena, last_words, problem)) {
    p.shard.lock().give_up_exec();
    socket::Guard guard(p.shard);
    socket::forget_kin(guard);
    return true;
  }
  BYPASS_LOG_WARN(
      "rights are given up, and there is no memory for an arena of the process's own (%s): its sockets are "
      "the kernel's from here on",
      problem.c_str());
  p.region.why(Reason::kArenaUnavailable, -1, 0, {}, problem.c_str());
  end_sharing();
  return false;
}

void end_change(const RightsChange& change) {
  Process* const p = process();
  if (!change.changes || !accelerates()) return;
  const Inside inside;
  const Undisturbed undisturbed;
  open_local_ports(*p);
  if (change.leaves) p->region.why(Reason::kGaveUpRights, -1, 0, {}, "its family keeps the memory that they shared");
  if (change.progressed) resume_threads();
}

}  // namespace bypass::runtime
