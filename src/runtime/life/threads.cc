// How many threads the process has, and how ours makes room for a call that allows one thread only.
#include <netinet/in.h>
#include <sched.h>

#include "observe/region.h"
#include "os/log/log.h"
#include "os/os.h"
#include "runtime/host.h"
#include "runtime/life/state.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "runtime/progress/program_threads.h"
#include "runtime/progress/publish.h"
#include "socket/shared/local.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

}  // namespace

void expect_end_of_first_thread(bool now) {
  if (g_process == nullptr || g_forked_child) return;
  g_process->progress.expect(now ? ProgramThreads::End::kNow : ProgramThreads::End::kByFilter);
}

bool is_threaded_by_us() {
  return g_process != nullptr && !g_forked_child && g_process->progress.is_only_other();
}

namespace {

/// Whether the kernel says that the process has one thread, where /proc cannot be read (after chroot(2)). This
/// unshare(2) changes nothing, and the kernel refuses it to a process of several threads.
bool is_alone_to_kernel() {
  return all_threads() == 0 && os::call(SYS_unshare, CLONE_THREAD) == 0;
}

}  // namespace

bool has_one_thread() {
  return all_threads() == 1 || is_threaded_by_us() || is_alone_to_kernel();
}

bool pause_threads() {
  return g_process != nullptr && !g_forked_child && !g_process->ports.opened() && g_process->progress.pause();
}

void resume_threads() {
  if (g_process->progress.start()) return;
  // After unshare(CLONE_NEWPID) the process can make no threads any more.
  constexpr const char* kNoThread = "the kernel refuses the process a progress thread";
  BYPASS_LOG(LogLevel::kInfo, "no shared memory within the host any more: %s", kNoThread);
  g_process->region.why(Reason::kNoSharedMemory, -1, IPPROTO_TCP, {}, kNoThread);
  socket::end_shared_memory();
  publish_a_last_time(*g_process);
}

}  // namespace bypass::runtime
