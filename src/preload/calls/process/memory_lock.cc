// mlockall: the kernel would fill the whole arena, whose file is sparse.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "os/memory_maps.h"
#include "os/os.h"
#include "preload/symbols.h"
#include "preload/with_errno.h"
#include "runtime/process.h"

namespace bypass::preload {
namespace {

int lock_all(int flags) {
  return static_cast<int>(with_errno(os::call(SYS_mlockall, flags)));
}

// As mlockall(2): only the limit is a failure; pages that cannot be filled are not.
bool limit_matters() {
  rlimit limit{};
  return geteuid() != 0 && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// What there is but the arena, of which what is touched stays in memory as other memory does.
int lock_current(std::uintptr_t arena, std::uintptr_t arena_end) {
  const std::string maps = os::read_memory_maps();
  const bool limited = limit_matters();
  long failure = 0;
  os::for_each_mapping(maps, [&](const os::MemoryMapping& each) {
    if (!each.permissions.starts_with('r') || (each.begin < arena_end && arena < each.end)) return true;
    const long error = os::call(SYS_mlock, static_cast<long>(each.begin), static_cast<long>(each.bytes()));
    if (error == -EPERM || (error == -ENOMEM && limited)) failure = error;
    return failure == 0;
  });
  return failure == 0 ? 0 : static_cast<int>(with_errno(failure));
}

}  // namespace

BYPASS_EXPORT(int, mlockall, (int flags)) {
  constexpr int kKnown = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT;
  const auto arena = runtime::arena_range();
  const bool fills = (flags & MCL_CURRENT) != 0 && (flags & MCL_ONFAULT) == 0;
  if (!fills || arena.empty() || (flags & ~kKnown) != 0) return lock_all(flags);
  const auto begin = reinterpret_cast<std::uintptr_t>(arena.data());
  if ((flags & MCL_FUTURE) == 0) os::call(SYS_mlockall, MCL_CURRENT | MCL_ONFAULT);  // takes an earlier one back
  if (const int r = lock_current(begin, begin + arena.size()); r != 0) return r;
  return (flags & MCL_FUTURE) != 0 ? lock_all(MCL_FUTURE) : 0;
}

}  // namespace bypass::preload
