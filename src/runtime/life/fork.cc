// A process forks: what its parent does before and after, and what its child keeps and forgets.
#include <utility>

#include "fastpath/shm/rendezvous/directory.h"
#include "observe/region.h"
#include "os/log/log.h"
#include "os/own/in_handler.h"
#include "os/own/own_descriptors.h"
#include "runtime/crash/crash.h"
#include "runtime/family/pump/relay_process.h"
#include "runtime/family/rights/spare.h"
#include "runtime/high_numbers.h"
#include "runtime/host.h"
#include "runtime/life/state.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "socket/api.h"
#include "socket/family/doorbell.h"
#include "socket/family/kin.h"
#include "socket/shard.h"
#include "socket/shared/local.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

thread_local socket::Fork fork_under_way;
thread_local bool holds_ports = false;  // this thread holds the ports for a fork
thread_local bool child_executes = false;

}  // namespace

void expect_exec_in_child(bool expect) {
  child_executes = expect;
}

void prepare_fork(ChildsNetwork network) {
  if (g_process == nullptr || g_forked_child) return;
  if (!g_process->config.ports.empty() && g_process->config.trust == Trust::kCredentials) {
    spare::make();
    if (g_process->ports.opened() && g_process->shard.owns_wires()) (void)spare::claim_ports();
  }
  g_process->progress.join_family();
  g_process->ports.hold_for_fork(g_process->shard);
  holds_ports = true;
  socket::prepare_doorbells_for_fork(network == ChildsNetwork::kNew);
  fork_under_way = socket::begin_fork();
}

void before_network_change() {
  if (g_process == nullptr || g_forked_child) return;
  g_process->progress.join_family();
  if (g_process->ports.opened() || socket::has_kin()) socket::prepare_to_go();
}

bool is_elsewhere(int fd) {
  return socket::is_elsewhere(fd);
}

void share_with_child(socket::File& file) {
  socket::share_with_child(fork_under_way, file);
}

void after_fork_parent(int child) {
  if (g_process == nullptr || g_forked_child) return;
  if (std::exchange(holds_ports, false)) {
    socket::end_doorbells_of_fork();
    g_process->ports.let_go_after_fork();
  }
  socket::end_fork_in_parent(fork_under_way, child);
  g_process->progress.expect_child(child);
  static bool told = false;
  if (fork_under_way.reserved != socket::kNoSlot || std::exchange(told, true)) return;
  g_process->region.why(Reason::kForkedChild, -1, 0, Endpoint{}, "in the child, until it execs");
}

void forget_parents(Process& p) {
  p.ports.drop_in_child();
  p.region.abandon();
  p.region_is_parents = true;
  p.socket_slots.clear();
  p.told = {};
  p.ending = 0;
  p.progress.forget();
  p.local_ports.abandon();
  forget_own_threads();
  crash::on_fork_child();
}

// The child closes its copies of our descriptors at once. While a child holds a wire, the peer cannot see that the
// owner died.
bool after_fork_child() {
  if (g_process == nullptr || g_forked_child) return false;
  Process& p = *g_process;
  holds_ports = false;
  forget_parents(p);
  socket::local_save_channels();
  p.ports.hide_handovers();
  spare::hide();
  arena::hide_descriptor();
  hide_relay();
  socket::hide_doorbells();
  close_own_descriptors(log_descriptor());
  socket::show_doorbells();
  show_relay();
  arena::show_descriptor();
  spare::show();
  p.ports.show_handovers();
  socket::local_restore_channels();
  // a child that was forked by a handler shares no memory with others
  if (!socket::is_in_handler()) open_local_ports(p);
  g_forked_child = !socket::join_family(fork_under_way);
  if (g_forked_child) {
    socket::process_shard = nullptr;
    p.ports.drop_handovers();
  }
  return !g_forked_child;
}

bool adopt_number(socket::File& file, int fd) {
  return socket::adopt_number(fork_under_way, file, fd);
}

// A child with a socket on the wire may live longer than the process that owns the ports now.
void end_fork_child() {
  socket::end_fork_in_child(fork_under_way);
  if (child_executes) return;
  if (!socket::refers_to_wire() || !g_process->progress.start()) return g_process->ports.drop_handovers();
  // The family is joined here and not by the progress thread. A number that is open there for a moment may be the one
  // that the program expects next.
  g_process->progress.join_family();
  if (!g_process->config.ports.empty()) g_process->progress.want_ports();
}

}  // namespace bypass::runtime
