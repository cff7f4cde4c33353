#include "runtime/ports/open_ports.h"

#include <netinet/in.h>

#include <algorithm>
#include <string>

#include "config/config.h"
#include "observe/region.h"
#include "os/log/log.h"
#include "os/own/own_work.h"
#include "runtime/crash/crash.h"
#include "runtime/family/rights/spare.h"
#include "runtime/host.h"
#include "runtime/life/before_start.h"
#include "runtime/process_graph.h"
#include "socket/family/receivers.h"
#include "socket/shard.h"
#include "socket/wait/wait.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

bool is_inside_library() {
  return socket::thread_signals.in_lock > 0 || thread_path.depth > 0;
}

const char* what_is_done() {
  return socket::thread_signals.in_lock > 0 ? "inside the stack, with the shard's lock held" : "inside a driver";
}

void install_crash_reports() {
  crash::Hooks hooks;
  hooks.inside = is_inside_library;
  hooks.doing = what_is_done;
  hooks.sigaction = reinterpret_cast<decltype(hooks.sigaction)>(backend_host().libc("sigaction"));
  crash::install(hooks);
}

}  // namespace

/// Reports the outcome when every port has been tried. Any thread may be the one that tried: also the progress thread.
void after_opening(const PortSet& ports) {
  const auto is_there = [](const PortSet::Entry& entry) { return entry.port != nullptr; };
  const auto there = std::count_if(ports.entries().begin(), ports.entries().end(), is_there);
  const bool all = static_cast<std::size_t>(there) == ports.entries().size(), any = there != 0;
  BYPASS_LOG_INFO("open: %td of %zu port(s)", there, ports.entries().size());
  for (const PortSet::Entry& entry : ports.entries())
    if (entry.port == nullptr)
      report_problem(Reason::kPortUnavailable, entry.problem,
                     any ? "sockets to its addresses are the kernel's" : kOnKernelSockets);
  bool asked_too_much = !all;
  for (const PortSet::Entry& entry : ports.entries()) {
    if (entry.port == nullptr || entry.links_problem.empty()) continue;
    if (g_process->config.rdma == RdmaMode::kDevice) {
      const std::string text = "BYPASS_RDMA=" + g_process->config.rdma_device + ": " + entry.links_problem;
      report_problem(Reason::kNoRdma, text, "connections to accelerated peers stay with TCP");
      asked_too_much = true;
    } else {
      BYPASS_LOG_INFO("no RDMA connections: %s", entry.links_problem.c_str());
      g_process->region.why(Reason::kNoRdma, -1, IPPROTO_TCP, {}, entry.links_problem.c_str());
    }
  }
  if (asked_too_much) end_if_strict();
  if (any) install_crash_reports();
}

bool open_ports(Process& p) {
  if (p.ports.opened()) [[likely]]
    return true;
  if (!p.ports.open(p.shard)) return false;
  { const socket::Guard stopped_here(p.shard); }  // this thread stops here if the process has ended meanwhile
  // A progress thread that was started for a listener may sleep as one without ports does. It is woken.
  if (!p.progress.start_or_wake())
    BYPASS_LOG_WARN("no progress thread: the stack moves only inside the program's calls");
  return true;
}

bool open_wire() {
  if (g_process->config.ports.empty()) return true;  // connections within the host need no port
  return open_ports(*g_process);
}

void open_wire_for_wait() {
  if (open_wire() || !PortSet::lent(g_process->shard)) [[likely]]
    return;
  if (!socket::has_source_on_wire()) return;
  spare::recall();
  g_process->progress.look_now();
}

/// Asks for the ports where this process needs them. Ports that their owner has left belong to nobody until then.
void ask_for_wire() {
  Process& p = *g_process;
  const bool left = p.ports.following() && p.shard.wires().owner_slot() == socket::kNoSlot;
  if (!p.ports.opened() || left) p.progress.want_ports();
}

}  // namespace bypass::runtime
