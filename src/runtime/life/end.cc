// A process ends, becomes another image, or leaves the library for good. Each delivers what was written, or says that
// it cannot.
#include <limits.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstdint>

#include "observe/region.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_work.h"
#include "runtime/family/keeper/keeper.h"
#include "runtime/life/before_start.h"
#include "runtime/life/state.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/progress/publish.h"
#include "socket/family/kin.h"
#include "socket/shard.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

/// The first thread that ends the process does the work; another one waits until it is done. False: nothing is left to
/// do. That is also the answer for a handler that interrupted the thread that does the work.
bool begin_end(Process& p) {
  const auto self = static_cast<std::uint32_t>(gettid());
  std::uint32_t by = 0;
  if (p.ending.compare_exchange_strong(by, self)) return true;
  for (; by != Process::kEnded && by != self; by = p.ending.load())
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&p.ending), by, 1'000'000'000);
  return false;
}

void finish_end(Process& p) {
  p.ending = Process::kEnded;
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&p.ending), INT_MAX);
}

void close_ports(void* process) {
  auto* p = static_cast<Process*>(process);
  p->ports.close(p->shard);
}

/// Where no handler runs, the caller joins the thread and closes the ports itself. Both make libc free memory, which a
/// handler must not do.
void end_threads_and_ports(Process& p) {
  if (socket::is_in_handler()) return p.progress.end_in_handler(close_ports, &p);
  p.progress.stop();
  close_ports(&p);
}

/// `handed_on`: another image follows, and it is to tell what this one has told of its sockets. The region keeps that
/// for the next image. It is kept after the progress thread has ended, because that thread may be about to make the
/// region.
void end_image(bool handed_on) {
  const auto keep = [handed_on] {
    if (handed_on) region().keep_for_exec();
  };
  if (g_forked_child || g_left) return keep();
  Process* p = g_process;
  // A handler that interrupted our own work and ends the process finds the stack in the middle of a change.
  if (p == nullptr || socket::thread_signals.in_lock > 0) {
    keep();
    return remove_region();
  }
  Inside inside;
  if (!begin_end(*p)) return keep();
  socket::thread_signals.ends = true;
  deliver_rest(*p);
  end_threads_and_ports(*p);
  if (!socket::has_kin()) (void)end_keeper(*p);
  keep();
  remove_region();
  finish_end(*p);
}

}  // namespace

void before_exit() {
  end_image(false);
}

bool leave() {
  if (Process* const p = g_process; p != nullptr && !g_forked_child) {
    if (p->ports.opened()) return false;
    p->region.why(Reason::kSyscallFilter, -1, 0, {}, "");
    publish_a_last_time(*p);
    p->progress.stop();
  }
  g_left = true;
  leave_region();
  return true;
}

void before_exec(bool handed_on) {
  end_image(handed_on);
  if (handed_on) renew_region();
  Process* const p = g_process;
  if (p != nullptr && !g_forked_child && socket::has_kin()) p->shard.family().detach();
}

}  // namespace bypass::runtime
