// mlockall: the kernel would fill the whole arena, whose file is sparse.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "os/os.h"
#include "preload/symbols.h"
#include "preload/with_errno.h"
#include "runtime/process.h"

namespace bypass::preload {
namespace {

int lock_all(int flags) {
  return static_cast<int>(with_errno(os::call(SYS_mlockall, flags)));
}

std::string read_maps() {
  std::string text;
  const long fd = os::call(SYS_openat, AT_FDCWD, reinterpret_cast<long>("/proc/self/maps"), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (long n = 0; (n = os::call(SYS_read, fd, reinterpret_cast<long>(part), sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(n));
  os::call(SYS_close, fd);
  return text;
}

// As mlockall(2): only the limit is a failure; pages that cannot be filled are not.
bool limit_matters() {
  rlimit limit{};
  return geteuid() != 0 && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// What there is but the arena, of which what is touched stays in memory as other memory does.
int lock_current(std::uintptr_t arena, std::uintptr_t arena_end) {
  const std::string maps = read_maps();
  const bool limited = limit_matters();
  for (std::size_t at = 0; at < maps.size();) {
    const std::size_t end = std::min(maps.find('\n', at), maps.size());
    const std::string_view line = std::string_view(maps).substr(at, end - at);
    at = end + 1;
    std::uintptr_t from = 0, to = 0;
    const auto first = std::from_chars(line.data(), line.data() + line.size(), from, 16);
    if (first.ec != std::errc() || first.ptr == line.data() + line.size()) continue;
    const auto second = std::from_chars(first.ptr + 1, line.data() + line.size(), to, 16);
    const bool readable = second.ptr + 1 < line.data() + line.size() && second.ptr[1] == 'r';
    if (second.ec != std::errc() || !readable || (from < arena_end && arena < to)) continue;
    const long error = os::call(SYS_mlock, static_cast<long>(from), static_cast<long>(to - from));
    if (error == -EPERM || (error == -ENOMEM && limited)) return static_cast<int>(with_errno(error));
  }
  return 0;
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
