// Some programs limit their address space while they run (vsftpd, Java launchers, program judges), and the arena's
// reservation counts. Under a limit below it each mmap() of the program would fail. So the kernel gets a limit that is
// larger by what the library uses, and the program sees its own limit.
#include "preload/calls/process/address_limit.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "os/os.h"
#include "preload/symbols.h"
#include "preload/with_errno.h"
#include "runtime/process.h"

namespace bypass::preload {
namespace {

/// The limit that the program has set, and the one that the kernel got instead. If threads set limits at once, the last
/// one counts.
struct Limit {
  std::atomic<rlim_t> soft, hard;

  void store(const rlimit& value) {
    soft.store(value.rlim_cur, std::memory_order_relaxed);
    hard.store(value.rlim_max, std::memory_order_relaxed);
  }
  [[nodiscard]] rlimit load() const {
    return {soft.load(std::memory_order_relaxed), hard.load(std::memory_order_relaxed)};
  }
};
constinit Limit asked{}, told{};
constinit std::atomic<bool> is_told{false};

bool is_same(const rlimit& one, const rlimit& other) {
  return one.rlim_cur == other.rlim_cur && one.rlim_max == other.rlim_max;
}

long ask_kernel(const rlimit* set, rlimit* old) {
  return os::call(SYS_prlimit64, 0, RLIMIT_AS, reinterpret_cast<long>(set), reinterpret_cast<long>(old));
}

rlim_t with_ours(rlim_t limit, rlim_t most) {
  const rlim_t ours = runtime::address_bytes();
  if (limit == RLIM_INFINITY) return limit;
  return std::min(limit > RLIM_INFINITY - ours ? RLIM_INFINITY : limit + ours, most);
}

/// The kernel's limit as the program must see it: others, such as prlimit(1), may have set it meanwhile.
rlimit seen(const rlimit& kernels) {
  return is_told && is_same(kernels, told.load()) ? asked.load() : kernels;
}

long set_limit(const rlimit& limit, const rlimit& kernels) {
  rlimit larger = limit;
  if (limit.rlim_cur <= limit.rlim_max) {
    // A process that may not raise the hard limit can still set the old value, or less.
    const rlimit before = seen(kernels);
    const rlim_t most = limit.rlim_max <= before.rlim_max ? kernels.rlim_max : RLIM_INFINITY;
    larger.rlim_max = limit.rlim_max == before.rlim_max ? kernels.rlim_max : with_ours(limit.rlim_max, most);
    larger.rlim_cur = std::min(with_ours(limit.rlim_cur, larger.rlim_max), larger.rlim_max);
  }
  const long r = ask_kernel(&larger, nullptr);
  if (r != 0) return r;
  asked.store(limit);
  told.store(larger);
  is_told = true;
  return 0;
}

bool is_ours(pid_t pid, int resource) {
  return resource == RLIMIT_AS && (pid == 0 || pid == getpid()) && !runtime::arena_range().empty();
}

/// prlimit(2).
int change(pid_t pid, int resource, const rlimit* limit, rlimit* old) {
  const auto straight = [&] {
    return os::call(SYS_prlimit64, pid, resource, reinterpret_cast<long>(limit), reinterpret_cast<long>(old));
  };
  if (!is_ours(pid, resource)) return static_cast<int>(with_errno(straight()));
  rlimit kernels{};
  long r = ask_kernel(nullptr, &kernels);
  const rlimit before = seen(kernels);
  if (r == 0 && limit != nullptr) r = set_limit(*limit, kernels);
  if (r == 0 && old != nullptr) *old = before;
  return static_cast<int>(with_errno(r));
}

}  // namespace

void give_address_limit_back() {
  rlimit kernels{};
  if (!is_told || ask_kernel(nullptr, &kernels) != 0 || !is_same(kernels, told.load())) return;
  const rlimit limit = asked.load();
  ask_kernel(&limit, nullptr);
}

void hide_in_address_limit() {
  rlimit kernels{};
  if (!is_told || ask_kernel(nullptr, &kernels) != 0 || !is_same(kernels, asked.load())) return;
  const rlimit larger = told.load();
  ask_kernel(&larger, nullptr);
}

// On a 64-bit machine both names of a function are the same.
BYPASS_EXPORT(int, setrlimit, (int resource, const rlimit* limit)) {
  return change(0, resource, limit, nullptr);
}

BYPASS_EXPORT(int, setrlimit64, (int resource, const rlimit* limit)) {
  return change(0, resource, limit, nullptr);
}

BYPASS_EXPORT(int, getrlimit, (int resource, rlimit* limit)) {
  return change(0, resource, nullptr, limit);
}

BYPASS_EXPORT(int, getrlimit64, (int resource, rlimit* limit)) {
  return change(0, resource, nullptr, limit);
}

BYPASS_EXPORT(int, prlimit, (pid_t pid, int resource, const rlimit* limit, rlimit* old)) {
  return change(pid, resource, limit, old);
}

BYPASS_EXPORT(int, prlimit64, (pid_t pid, int resource, const rlimit* limit, rlimit* old)) {
  return change(pid, resource, limit, old);
}

}  // namespace bypass::preload
