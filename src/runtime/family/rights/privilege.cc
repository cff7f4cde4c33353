#include "runtime/family/rights/privilege.h"

#include <limits.h>
#include <sys/socket.h>

#include <utility>

#include "os/kernel.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_work.h"
#include "runtime/family/keeper/keeper.h"
#include "runtime/family/pump/pump_process.h"
#include "runtime/family/pump/relay_process.h"
#include "runtime/family/rights/await_spare.h"
#include "runtime/family/rights/spare.h"
#include "runtime/family/rights/turn.h"
#include "runtime/host.h"
#include "runtime/life/before_start.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/undisturbed.h"
#include "socket/family/doorbell.h"
#include "socket/family/kin.h"
#include "socket/family/move_sockets.h"
#include "socket/family/receivers.h"
#include "socket/socket.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

void stay(Process& p, const char* why) {
  BYPASS_LOG_INFO("rights are given up, and memory stays shared: %s", why);
  spare::drop();
  p.region.why(Reason::kSharesWithLess, -1, 0, {}, why);
}

constexpr std::int64_t kLook = 20'000'000;  // ns
constexpr int kLooks = 250;                 // 5 s of them

/// Closes the family's ports. They stay closed while they are lent. False: the process that has them keeps them.
bool borrow_ports(Process& p) {
  spare::forget_recalls();
  p.shard.wires().lent.store(true, std::memory_order_release);
  p.ports.leave(p.shard);
  socket::Wires& wires = p.shard.wires();
  for (int i = 0; i < kLooks; i++) {
    const std::uint32_t seen = wires.openings.load(std::memory_order_acquire);
    if (!PortSet::owner_lives(p.shard)) return true;
    {
      const socket::Guard guard(p.shard);
      socket::call_kin();
    }
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&wires.openings), seen, kLook);
  }
  return false;
}

void give_ports_back(Process& p) {
  p.shard.wires().lent.store(false, std::memory_order_release);
  const socket::Guard guard(p.shard);
  socket::call_kin();
}

/// Whether the calling thread is the only one of the program's. Threads of a port's plugin, which are ours, cannot end.
/// They touch no memory of the family once the ports are closed.
bool has_one_of_program() {
  await_beginning_threads();  // they count as ours once they run
  return has_one_thread() || all_threads() == 1 + own_threads();
}

/// Null: the process can move. The progress thread has ended, which might open the ports meanwhile. Otherwise the text
/// says why it cannot.
const char* why_not_move(const Standing& then) {
  if (spare::descriptor() < 0) return "the process has sockets on a port, and has been forked without memory for it";
  if (then.permitted != 0 || then.user_namespace != Standing::now().user_namespace)
    return "the process has sockets on a port, and keeps capabilities";
  if (!has_one_of_program()) return "the process has sockets on a port, and several threads";
  if (!socket::has_only_what_moves()) return "the process, or its family, has more on a port than what can move";
  return nullptr;
}

/// Null: everything is there that the process needs to move, and the ports are the other arena's. Called with the turn.
const char* make_ready(Process& p, RightsChange& change) {
  arena::Spare& spare = p.arena.spare;
  const Driving driving = await_spare(spare);
  if (spare.filled && !may_share(spare.standing, change.then))
    return "the process has sockets on a port, which others have that have given up other rights";
  change.founds = !spare.filled;
  if (change.founds && !socket::has_all_on_wire())
    return "the process has sockets on a port, and others of its family have some that it has not";
  if (spare.filled && driving == Driving::kServes) return nullptr;
  if (driving != Driving::kNone) return "the process has sockets on a port, whose driver neither serves nor ends";
  const char* problem = "the process has sockets on a port, which another one does not close";
  if (borrow_ports(p)) change.driver = begin_driver(p, change.then, Opens::kNow, problem);
  if (change.driver.pair >= 0) return nullptr;
  give_ports_back(p);
  return problem;
}

/// Whether the family needs the spare: processes with a socket on the port may give up other rights later. Their ports
/// may not be open yet.
bool is_spare_wanted(Process& p) {
  const socket::Guard guard(p.shard);
  return socket::is_wire_needed(guard);
}

/// The same for a process that has nothing on the port yet. With its present rights it makes a driver that can open the
/// ports later. False: the ports are another process's, or may become that.
bool make_ready_for_later(Process& p, RightsChange& change) {
  arena::Spare& spare = p.arena.spare;
  const Driving driving = await_spare(spare);
  if (!spare.filled && is_spare_wanted(p)) return false;
  if (spare.filled && (!may_share(spare.standing, change.then) || !socket::has_only_what_moves())) return false;
  change.founds = !spare.filled;
  if (spare.filled && driving == Driving::kServes) return true;
  // A process that has given rights up and stays has closed the spare, which released its lock.
  if (driving != Driving::kNone || spare::are_ports_claimed() || PortSet::owner_lives(p.shard)) return false;
  const char* problem = nullptr;
  change.driver = begin_driver(p, change.then, Opens::kWhenCalled, problem);
  return change.later = change.driver.pair >= 0;
}

/// Ends a driver that waits for a process which does not come.
void drop_prepared(RightsChange& change) {
  if (change.noted >= 0) socket::kernel->close(std::exchange(change.noted, -1));
  drop_driver(change.driver);
}

bool can_need_driver(const Process& p, const Standing& then) {
  return !p.config.ports.empty() && spare::descriptor() >= 0 && then.permitted == 0 &&
         then.user_namespace == Standing::now().user_namespace && has_one_of_program();
}

/// If the process is to move, it has the turn from here on to leave_arena().
void prepare_for_later(Process& p, RightsChange& change) {
  if (!can_need_driver(p, change.then)) return;
  change.progressed = change.progressed || p.progress.runs();
  p.progress.vanish();
  take_turn(p);
  change.noted = socket::kernel->socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  spare::note(change.noted);
  change.moves = change.noted >= 0 && make_ready_for_later(p, change);
  if (change.moves) return;
  drop_prepared(change);
  end_turn(p);
}

/// From here on to leave_arena() this process has the turn.
bool prepare_move(Process& p, RightsChange& change) {
  change.progressed = change.progressed || p.progress.runs();
  p.progress.vanish();
  const char* problem = why_not_move(change.then);
  if (problem == nullptr) {
    take_turn(p);
    problem = make_ready(p, change);
    if (problem != nullptr) end_turn(p);
    if (problem != nullptr) p.progress.want_ports();
  }
  if (problem != nullptr && change.progressed) resume_threads();
  if (problem != nullptr) stay(p, problem);
  return change.moves = problem == nullptr;
}

}  // namespace

void note_socket(const socket::File& file, int fd) {
  if (file.kind == socket::FileKind::kListener || file.kind == socket::FileKind::kDatagram) spare::note(fd);
}

RightsChange begin_change(const Standing& then, PumpNumbers pump_numbers) {
  RightsChange change;
  Process* const p = process();
  if (p == nullptr || !accelerates()) return change;
  const Inside inside;
  change.changes = true;
  change.leaves = p->shard.family().has_living_kin();
  // A keeper that keeps the rights must not read this arena any more.
  if (!change.leaves && !may_share(Standing::now(), then)) change.leaves = !end_keeper(*p);
  if (socket::is_in_handler()) {  // the handler may have interrupted work in the arena or in malloc
    if (change.leaves) stay(*p, "a signal handler gives them up");
    return {};
  }
  // After the change the folder may be closed to the process.
  if (change.leaves && p->region_is_parents.exchange(false)) renew_region();
  if (change.leaves && p->config.trust == Trust::kFamily) {
    stay(*p, "BYPASS_TRUST=family");
    return {};
  }
  change.then = then;
  const Undisturbed undisturbed;
  if (change.leaves) change.progressed = pump_connections(*p, pump_numbers);
  // A helper beside a master that accepts leaves the listeners to the master: in the helper's copy they are the
  // kernel's.
  const bool on_wire = change.leaves ? socket::has_use_of_wire() : socket::refers_to_wire();
  // What the ports need is still there. The progress thread would open them only some tens of milliseconds later.
  if (on_wire && !change.leaves) (void)open_ports(*p);
  if (on_wire && change.leaves && !prepare_move(*p, change)) return {};
  if (!on_wire && change.leaves) prepare_for_later(*p, change);
  return change;
}

void give_back(socket::File& file, int fd, const RightsChange& change) {
  const bool is_shared = change.leaves && (change.moves || socket::is_shared_with_kin(file));
  const bool was_local = socket::calls_of(file).in_kernel;
  if (!is_shared && !was_local) return;
  socket::leave_shared_memory(file);
  if (change.moves && !change.founds) socket::note_socket(file, fd);
  if (was_local) record_why(fd, static_cast<unsigned>(Reason::kGaveUpRights), "");
}

namespace {

void cannot_leave(Process& p, const std::string& problem) {
  BYPASS_LOG_WARN(
      "rights are given up, and there is no memory for an arena of the process's own (%s): its sockets are "
      "the kernel's from here on",
      problem.c_str());
  spare::drop();
  spare::drop_call();
  p.region.why(Reason::kArenaUnavailable, -1, 0, {}, problem.c_str());
  end_sharing();
}

/// For other processes this one has ended. It has no arena until it has given its rights up.
bool leave_old_arena(Process& p, const RightsChange& change) {
  std::string problem;
  p.ports.leave(p.shard);
  (void)p.shard.lock().hold_for_copy();
  if (change.founds) spare::claim_copy();
  const bool copied = !change.founds || arena::copy_into(p.arena, spare::descriptor(), problem);
  arena::Spare& spare = p.arena.spare;
  if (copied) {
    spare.filled = true;
    spare.standing = change.then;
  }
  spare.founder = 0;
  tell_change(spare);
  if (copied && change.founds) socket::drop_queued(p.shard.context());
  p.shard.lock().let_others_in();
  p.shard.family().die_to_others();
  arena::drop();
  if (!copied) cannot_leave(p, problem);
  return copied;
}

/// In a copy that nobody has changed since: removes what belongs to the processes that stay there.
void settle(Process& p) {
  p.shard.lock().give_up_exec();
  {
    socket::Guard guard(p.shard);
    socket::forget_kin(guard);
    socket::forget_receivers();
  }
  p.shard.wires().lent.store(false, std::memory_order_relaxed);
  p.arena.spare.filled = false;
  p.arena.spare.founder = 0;
  p.arena.spare.made.store(arena::Spare::kSettled, std::memory_order_release);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&p.arena.spare.made), INT_MAX);
}

/// Forgets what the process has of its own beside the objects of the arena that it has left.
void forget_own(Process& p) {
  const bool keeps_plugins = own_threads() != 0;
  keeps_plugins ? p.ports.keep_plugins_alone() : p.ports.drop_in_child();
  p.progress.forget();
  spare::hide();
  socket::hide_doorbells();
  close_own_descriptors(log_descriptor());
  socket::show_doorbells();
  spare::show();
  if (keeps_plugins) p.ports.protect_plugins();
  p.local_ports.abandon();
  socket::forget_own_halves();
}

/// Waits until the driver serves. False: it does not come.
bool await_driver(Process& p) {
  const std::atomic<std::uint32_t>& state = p.arena.spare.made;
  for (int i = 0; i < kLooks; i++) {
    const std::uint32_t seen = state.load(std::memory_order_acquire);
    if (seen == arena::Spare::kDriven) return true;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&state), seen, kLook);
  }
  return false;
}

/// Enters the new arena. False: the process has no arena.
bool enter_new_arena(Process& p, RightsChange& change, void (*enter)(int fd, socket::File* file)) {
  std::string problem = "the kernel has not given the rights up";
  if (!may_share(Standing::now(), change.then) || !arena::map(spare::descriptor(), problem)) {
    if (change.founds) arena::abandon(spare::descriptor());
    cannot_leave(p, problem);
    return false;
  }
  if (change.founds) settle(p);
  if (change.later)
    let_wait(p, change.driver);
  else if (change.driver.pair >= 0)
    let_drive(change.driver);
  const bool driven = change.later || await_driver(p);
  if (!change.founds) {
    forget_own(p);
    if (!driven || !p.shard.family().on_fork_child()) {
      cannot_leave(p, "nobody has made it ready");
      return false;
    }
    socket::enter_arena();
    if (change.later) socket::sweep_family();  // nobody else sweeps while no process has the ports
    socket::bring_sockets(enter);
  }
  spare::drop();
  // If the family has no driver any more, its member opens the ports itself, if it can.
  p.shard.family().own().cannot_own.store(driven, std::memory_order_relaxed);
  return true;
}

}  // namespace

bool leave_arena(RightsChange& change) {
  Process& p = *process();
  const Inside inside;
  const Undisturbed undisturbed;
  if (change.moves) {
    p.local_ports = {};
    return leave_old_arena(p, change);
  }
  change.progressed = change.progressed || p.progress.runs();
  p.progress.vanish();  // the kernel gives a new user namespace only to a process of one thread
  p.local_ports = {};
  // Workers of another user may have made the spare theirs.
  if (change.leaves || !may_change_user(change.then)) spare::drop();
  if (!change.leaves) return true;
  begin_relay(p);
  if (!p.config.ports.empty())
    p.ports.give_up(p.shard, "the process has given up rights that others of its family have; the port is theirs");
  std::string problem;
  (void)p.shard.lock().hold_for_copy();
  const auto last_words = [](const arena::Mapped& mapped) {
    mapped.lock.let_others_in();
    mapped.family.die_to_others();
  };
  if (arena::renew(p.arena, last_words, problem)) {
    p.shard.lock().give_up_exec();
    socket::Guard guard(p.shard);
    socket::forget_kin(guard);
    return true;
  }
  cannot_leave(p, problem);
  return false;
}

bool end_change(RightsChange change, void (*enter)(int fd, socket::File* file)) {
  Process* const p = process();
  if (!change.changes) return true;
  const Inside inside;
  const Undisturbed undisturbed;
  if (!accelerates()) {  // the process could not leave the arena
    drop_prepared(change);
    return true;
  }
  const bool is_in = !change.moves || enter_new_arena(*p, change, enter);
  drop_prepared(change);
  if (!is_in) return false;
  open_local_ports(*p);
  if (change.leaves) p->region.why(Reason::kGaveUpRights, -1, 0, {}, "its family keeps the memory that they shared");
  if (change.progressed) resume_threads();
  if (change.moves) p->progress.want_ports();
  return true;
}

}  // namespace bypass::runtime
