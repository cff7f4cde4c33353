// prctl and seccomp. A filter that kills a process for a forbidden call was made for the program's calls, not for ours.
// If it kills only the thread, the library's threads would keep the process alive. So before such a filter everything
// goes to the kernel for good. The same happens before a filter that answers a call of ours with an errno, which we
// could not handle. Other filters change nothing.
#include "preload/calls/process/filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <span>

#include "os/os.h"
#include "os/own/own_calls.h"
#include "preload/acceleration.h"
#include "preload/calls/process/filter_program.h"
#include "preload/calls/process/signals.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/passing.h"
#include "preload/pumped.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "preload/uses.h"
#include "preload/with_errno.h"
#include "runtime/family/pump/relay_process.h"
#include "runtime/process.h"
#include "socket/api.h"

namespace bypass::preload {
namespace {

/// Copies program memory, whose address may be wrong. False: it is, or the process may not read it.
bool copy_in(void* to, const void* from, std::size_t bytes) {
  const iovec here{to, bytes}, there{const_cast<void*>(from), bytes};
  return os::call(SYS_process_vm_readv, os::call(SYS_getpid), reinterpret_cast<long>(&here), 1,
                  reinterpret_cast<long>(&there), 1, 0) == static_cast<long>(bytes);
}

bool may_end_somebody(const sock_filter& line) {
  if (BPF_CLASS(line.code) != BPF_RET) return false;
  if (BPF_RVAL(line.code) != BPF_K) return true;
  const std::uint32_t action = line.k & SECCOMP_RET_ACTION_FULL;
  return action != SECCOMP_RET_ALLOW && action != SECCOMP_RET_LOG && action != SECCOMP_RET_ERRNO;
}

/// Whether it answers with an errno a call that the library needs the kernel to answer.
bool refuses_ours(std::span<const sock_filter> program) {
  return std::ranges::any_of(runtime::own_calls(), [&](const runtime::OwnCall& call) {
    seccomp_data data{};
    data.nr = static_cast<int>(call.number);
    data.arch = AUDIT_ARCH_X86_64;
    data.args[1] = static_cast<std::uint64_t>(call.second);
    return (answer_of(program, data) & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO;
  });
}

using Lines = std::array<sock_filter, BPF_MAXINSNS>;

/// Nothing, if the filter cannot be read. (The kernel accepts no empty one.)
std::span<const sock_filter> read_filter(const sock_fprog* program, Lines& lines) {
  sock_fprog copy{};
  if (!copy_in(&copy, program, sizeof copy)) return {};
  if (copy.len > lines.size() || !copy_in(lines.data(), copy.filter, copy.len * sizeof(sock_filter))) return {};
  return std::span<const sock_filter>(lines.data(), copy.len);
}

bool concerns_us(std::span<const sock_filter> program) {
  return program.empty() ||
         std::ranges::any_of(program, [](const sock_filter& line) { return may_end_somebody(line); }) ||
         refuses_ours(program);
}

/// A call of ours, with those arguments of its that a filter may look at.
struct Needed {
  int number;
  std::uint64_t first = 0, second = 0;
};
constexpr std::array kAskNames{Needed{SYS_getsockname}, Needed{SYS_getpeername}};
constexpr std::array kMakeSockets{Needed{SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC},
                                  Needed{SYS_socket, AF_INET6, SOCK_STREAM | SOCK_CLOEXEC},
                                  Needed{SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC},
                                  Needed{SYS_sendto},
                                  Needed{SYS_recvfrom},
                                  Needed{SYS_close}};
constexpr std::array kFetchEnds{Needed{SYS_capget},    Needed{SYS_capset},      Needed{SYS_geteuid},
                                Needed{SYS_fstat},     Needed{SYS_newfstatat},  Needed{SYS_pidfd_open},
                                Needed{SYS_close},     Needed{SYS_pidfd_getfd}, Needed{SYS_dup3},
                                Needed{SYS_prlimit64}, Needed{SYS_fcntl},       Needed{SYS_rt_sigprocmask}};

constexpr std::array kTakePassed{Needed{SYS_fstat}, Needed{SYS_getsockopt}, Needed{SYS_recvmsg},
                                 Needed{SYS_fcntl}, Needed{SYS_dup3},       Needed{SYS_close}};
constexpr std::array kOpenConnections{Needed{SYS_socket, AF_INET, SOCK_STREAM}, Needed{SYS_bind}, Needed{SYS_listen},
                                      Needed{SYS_connect}};

/// Whether it has the kernel make each of these calls.
bool allows(std::span<const sock_filter> program, std::span<const Needed> calls) {
  return !program.empty() && std::ranges::all_of(calls, [&](const Needed& call) {
    seccomp_data data{};
    data.nr = call.number;
    data.arch = AUDIT_ARCH_X86_64;
    data.args[0] = call.first;
    data.args[1] = call.second;
    const std::uint32_t action = answer_of(program, data) & SECCOMP_RET_ACTION_FULL;
    return action == SECCOMP_RET_ALLOW || action == SECCOMP_RET_LOG;
  });
}

/// Sockets are given first, because epoll sets contain them.
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

constinit std::atomic<bool> filtered{false}, asks_no_names{false}, makes_no_sockets{false};

/// What the calls of preload/pumped.h need, where the filter does not allow it.
void do_without(std::span<const sock_filter> program) {
  if (goes_straight()) return;
  const KeepErrno keep;
  if (!allows(program, kFetchEnds) && has_started()) forbid_pumps();
  if (!allows(program, kOpenConnections)) runtime::drop_relay();
  if (!allows(program, kAskNames)) asks_no_names = true;
  if (!allows(program, kMakeSockets)) makes_no_sockets = true;
  if (!allows(program, kMakeSockets) || !allows(program, kTakePassed)) take_nothing();
}

void before_filter() {
  if (goes_straight()) return;
  KeepErrno keep;
  if (has_started() && (!give_all_to_kernel() || !runtime::leave())) {
    filtered = true;
    take_nothing();
    runtime::expect_end_of_first_thread(false);
    return note_escape(-1, observe::Reason::kSyscallFilter, "not those on a port");
  }
  stay_outside();
  let_handlers_run();
  end_acceleration();
}

}  // namespace

bool is_filtered() {
  return filtered.load(std::memory_order_relaxed);
}

bool may_ask_names() {
  return !asks_no_names.load(std::memory_order_relaxed);
}

bool may_make_sockets() {
  return !makes_no_sockets.load(std::memory_order_relaxed);
}

bool concerns_filters(long number) {
  return number == SYS_seccomp || number == SYS_prctl || number == SYS_landlock_restrict_self;
}

void before_filter_call(long number, long a, long b, long c) {
  if (number == SYS_prctl && a != PR_SET_SECCOMP) return;
  if (number == SYS_landlock_restrict_self) {  // they may forbid bind(2) and connect(2)
    if (!goes_straight()) runtime::drop_relay();
    return;
  }
  const bool strict = number == SYS_prctl ? b == SECCOMP_MODE_STRICT : a == SECCOMP_SET_MODE_STRICT;
  const bool filter = number == SYS_prctl ? b == SECCOMP_MODE_FILTER : a == SECCOMP_SET_MODE_FILTER;
  if (!strict && !filter) return;
  Lines lines;
  std::span<const sock_filter> program;
  if (filter) program = read_filter(reinterpret_cast<const sock_fprog*>(c), lines);
  do_without(program);
  if (concerns_us(program)) before_filter();
}

BYPASS_EXPORT(int, prctl, (int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)) {
  const auto first = static_cast<long>(a), second = static_cast<long>(b);
  before_filter_call(SYS_prctl, option, first, second);
  return static_cast<int>(
      with_errno(os::call(SYS_prctl, option, first, second, static_cast<long>(c), static_cast<long>(d))));
}

}  // namespace bypass::preload
