#include "backends/verbs/fork.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "backends/packet/libc.h"

namespace bypass::verbs {

// Before Linux 5.12, a forked child shares pages with its parent until one of them writes. A device would then go on
// with pages that have become the child's. ibv_fork_init makes the library keep the pages of queues out of children; it
// must come before anything is registered. Newer kernels copy such pages at the fork, and need nothing.
void prepare_for_fork(const Verbs& verbs, const std::string& device) {
  if (verbs.fork_init == nullptr) return;
  if (verbs.is_fork_initialized != nullptr && verbs.is_fork_initialized() != IBV_FORK_DISABLED) return;
  const int error = verbs.fork_init();
  if (error == 0) return;
  const char* const known = strerrordesc_np(error);
  const std::string problem = "verbs:" + device + ": a program that forks may lose the device: ibv_fork_init: " +
                              (known != nullptr ? known : "error " + std::to_string(error));
  packet::host->log(LogLevel::kWarn, problem.c_str());
}

// ibv_fork_init makes the library keep registered memory out of children, too, by whole pages. This undoes that.
void keep_in_children(std::span<const std::byte> memory) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) & ~(page - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size() + page - 1) & ~(page - 1);
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DOFORK);
}

}  // namespace bypass::verbs
