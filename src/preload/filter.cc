// prctl and seccomp: a filter that ends who makes a forbidden call knows the program's calls, not ours, and where it
// ends one thread the library's own would keep the process. So before such a filter everything is the kernel's, for
// good. One that answers with an errno changes nothing: that can be coped with.
#include "preload/filter.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "preload/acceleration.h"
#include "preload/escape.h"
#include "preload/inside.h"
#include "preload/numbers.h"
#include "preload/raw_syscall.h"
#include "preload/signals.h"
#include "preload/symbols.h"
#include "preload/uses.h"
#include "runtime/process.h"
#include "socket/api.h"

namespace bypass::preload {
namespace {

/// Of the program's memory: it may have given a wrong address. False: it has, or nobody may look.
bool copy_in(void* to, const void* from, std::size_t bytes) {
  const iovec here{to, bytes}, there{const_cast<void*>(from), bytes};
  return raw_syscall(SYS_process_vm_readv, raw_syscall(SYS_getpid), reinterpret_cast<long>(&here), 1,
                     reinterpret_cast<long>(&there), 1, 0) == static_cast<long>(bytes);
}

bool may_end_somebody(const sock_filter& line) {
  if (BPF_CLASS(line.code) != BPF_RET) return false;
  if (BPF_RVAL(line.code) != BPF_K) return true;
  const std::uint32_t action = line.k & SECCOMP_RET_ACTION_FULL;
  return action != SECCOMP_RET_ALLOW && action != SECCOMP_RET_LOG && action != SECCOMP_RET_ERRNO;
}

/// True, too, of one that cannot be read.
bool may_end_somebody(const sock_fprog* program) {
  sock_fprog copy{};
  if (!copy_in(&copy, program, sizeof copy)) return true;
  std::array<sock_filter, 64> lines;
  for (std::size_t at = 0; at < copy.len;) {
    const std::size_t count = std::min(lines.size(), copy.len - at);
    if (!copy_in(lines.data(), copy.filter + at, count * sizeof(sock_filter))) return true;
    for (std::size_t i = 0; i < count; i++)
      if (may_end_somebody(lines[i])) return true;
    at += count;
  }
  return false;
}

/// Sockets first: epoll sets hold them.
bool give_all_to_kernel() {
  socket::end_shared_memory();
  bool all = true;
  for (const bool sets : {false, true}) {
    for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
      const Entry entry = fd_table.load(fd);
      if (entry.empty() || entry.is_epoll() != sets) continue;
      const Use use(fd, Use::kAny);
      all = (!use || socket::give_up(*use)) && all;
    }
  }
  return all;
}

void before_filter() {
  if (goes_straight()) return;
  KeepErrno keep;
  if (has_started() && (!give_all_to_kernel() || !runtime::leave())) {
    return note_escape(-1, observe::Reason::kSyscallFilter, "not those on a port");
  }
  stay_outside();
  let_handlers_run();
  end_acceleration();
}

}  // namespace

bool concerns_filters(long number) {
  return number == SYS_seccomp || number == SYS_prctl;
}

void before_filter_call(long number, long a, long b, long c) {
  if (number == SYS_prctl && a != PR_SET_SECCOMP) return;
  const bool strict = number == SYS_prctl ? b == SECCOMP_MODE_STRICT : a == SECCOMP_SET_MODE_STRICT;
  const bool filter = number == SYS_prctl ? b == SECCOMP_MODE_FILTER : a == SECCOMP_SET_MODE_FILTER;
  if (strict || (filter && may_end_somebody(reinterpret_cast<const sock_fprog*>(c)))) before_filter();
}

BYPASS_EXPORT(int, prctl, (int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)) {
  const auto first = static_cast<long>(a), second = static_cast<long>(b);
  before_filter_call(SYS_prctl, option, first, second);
  return static_cast<int>(
      with_errno(raw_syscall(SYS_prctl, option, first, second, static_cast<long>(c), static_cast<long>(d))));
}

}  // namespace bypass::preload
