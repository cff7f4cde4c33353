// setuid() and related calls, and capset(): before a process gives up rights, it leaves the memory that it shares with
// processes that keep them (runtime/family/rights/privilege.h).
#include "preload/calls/process/credentials.h"

#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/types.h>

#include "os/program_memory.h"
#include "preload/acceleration.h"
#include "preload/calls/process/filter.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "preload/uses.h"
#include "runtime/family/rights/privilege.h"
#include "runtime/family/standing.h"
#include "runtime/process.h"
#include "runtime/undisturbed.h"

namespace bypass::preload {
namespace {

using runtime::RightsChange;
using runtime::Standing;

/// Gives back the program's objects in memory that other processes use, too.
void give_numbers_back(const RightsChange& change) {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    const Use use(fd, Use::kAny);
    if (!use) continue;
    runtime::give_back(*use, fd, change);
    drop_if_decided(use, fd);
  }
}

void note_sockets() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++)
    if (const Use use(fd, Use::kAny); use) runtime::note_socket(*use, fd);
}

RightsChange begin(const Standing& now, const Standing& then) {
  if (runtime::may_share(now, then)) return {};
  note_sockets();
  exchange_all_pumped();
  RightsChange change = runtime::begin_change(then, pump_numbers);
  if (!change.changes) return change;
  give_numbers_back(change);
  if (!runtime::leave_arena(change)) end_acceleration();
  return change;
}

void end(const RightsChange& change) {
  const auto enter = [](int fd, File* file) {
    if (file != nullptr) (void)enter_number(fd, file);
  };
  if (change.moves && !change.founds) fd_table.forget();
  if (!runtime::end_change(change, enter)) end_acceleration();
}

/// If the kernel has taken more rights than was foreseen, the missing steps are done now, before the program continues.
void end(const RightsChange& change, const Standing& before) {
  if (change.changes) return end(change);
  if (const Standing now = Standing::now(); !runtime::may_share(before, now)) end(begin(before, now));
}

/// A change takes the process out of its arena. No other thread of the process may leave or enter it meanwhile. (The
/// kernel's call is libc's, which makes every thread call it, also one that waits here.)
pthread_mutex_t g_changing = PTHREAD_MUTEX_INITIALIZER;

/// Held with all handlers of the program blocked.
class Turn {
 public:
  Turn() { pthread_mutex_lock(&g_changing); }
  ~Turn() { pthread_mutex_unlock(&g_changing); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  const runtime::Undisturbed undisturbed_;  // the process may have no arena meanwhile
};

/// `then`: the rights that the process will have. Keeps the call's errno.
template <typename Call>
auto change_rights(Standing (*then)(const Standing&, const void*), const void* arguments, Call call) {
  if (!has_started() || goes_straight() || is_filtered()) return call();
  const int saved = errno;
  const Turn turn;
  const Standing before = Standing::now();
  const RightsChange change = begin(before, then(before, arguments));
  errno = saved;
  const auto result = call();
  const KeepErrno keep;
  end(change, before);
  return result;
}

template <typename Then, typename Call>
auto change(const Then& then, Call call) {
  return change_rights([](const Standing& now, const void* f) { return (*static_cast<const Then*>(f))(now); }, &then,
                       call);
}

/// capset(2): version 1 has one word, later versions two. If the arguments cannot be read, or name another process, the
/// standing is unchanged.
Standing after(const Standing& now, const void* header, const void* data) {
  __user_cap_header_struct head{};
  if (!socket::is_readable(header, sizeof head) || data == nullptr) return now;
  head = *static_cast<const __user_cap_header_struct*>(header);
  const bool one = head.version == _LINUX_CAPABILITY_VERSION_1;
  const auto* const words = static_cast<const __user_cap_data_struct*>(data);
  if (!socket::is_readable(words, (one ? 1 : 2) * sizeof *words)) return now;
  const std::uint64_t high = one ? 0 : words[1].permitted;
  return runtime::after_capset(now, high << 32 | words[0].permitted);
}

BYPASS_EXPORT(int, setuid, (uid_t user)) {
  return change([=](const Standing& now) { return runtime::after_setuid(now, user); },
                [=] { return real.setuid(user); });
}

BYPASS_EXPORT(int, setgid, (gid_t group)) {
  return change([=](const Standing& now) { return runtime::after_setgid(now, group); },
                [=] { return real.setgid(group); });
}

BYPASS_EXPORT(int, seteuid, (uid_t user)) {
  return change(
      [=](const Standing& now) {
        return runtime::after_setresuid(now, {runtime::kSameId, user, runtime::kSameId});
      },
      [=] { return real.seteuid(user); });
}

BYPASS_EXPORT(int, setegid, (gid_t group)) {
  return change(
      [=](const Standing& now) {
        return runtime::after_setresgid(now, {runtime::kSameId, group, runtime::kSameId});
      },
      [=] { return real.setegid(group); });
}

BYPASS_EXPORT(int, setreuid, (uid_t user, uid_t effective)) {
  return change([=](const Standing& now) { return runtime::after_setreuid(now, user, effective); },
                [=] { return real.setreuid(user, effective); });
}

BYPASS_EXPORT(int, setregid, (gid_t group, gid_t effective)) {
  return change([=](const Standing& now) { return runtime::after_setregid(now, group, effective); },
                [=] { return real.setregid(group, effective); });
}

BYPASS_EXPORT(int, setresuid, (uid_t user, uid_t effective, uid_t saved)) {
  return change(
      [=](const Standing& now) {
        return runtime::after_setresuid(now, {user, effective, saved});
      },
      [=] { return real.setresuid(user, effective, saved); });
}

BYPASS_EXPORT(int, setresgid, (gid_t group, gid_t effective, gid_t saved)) {
  return change(
      [=](const Standing& now) {
        return runtime::after_setresgid(now, {group, effective, saved});
      },
      [=] { return real.setresgid(group, effective, saved); });
}

// As libcap declares it, but without its types.
BYPASS_EXPORT(int, capset, (void* header, const void* data)) {
  return change([=](const Standing& now) { return after(now, header, data); },
                [=] { return real.capset(header, data); });
}

Standing after_number(const Standing& now, long number, const long (&words)[6]) {
  const auto id = [&](int i) { return static_cast<std::uint32_t>(words[i]); };
  switch (number) {
    case SYS_setuid:
      return runtime::after_setuid(now, id(0));
    case SYS_setgid:
      return runtime::after_setgid(now, id(0));
    case SYS_setreuid:
      return runtime::after_setreuid(now, id(0), id(1));
    case SYS_setregid:
      return runtime::after_setregid(now, id(0), id(1));
    case SYS_setresuid:
      return runtime::after_setresuid(now, {id(0), id(1), id(2)});
    case SYS_setresgid:
      return runtime::after_setresgid(now, {id(0), id(1), id(2)});
    default:
      return after(now, reinterpret_cast<const void*>(words[0]), reinterpret_cast<const void*>(words[1]));
  }
}

}  // namespace

void forget_changes_after_fork() {
  pthread_mutex_init(&g_changing, nullptr);  // another thread of the parent may have held it
}

bool changes_rights(long number) {
  switch (number) {
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_capset:
      return true;
    default:
      return false;
  }
}

int change_user_namespace(int (*call)(const void* argument), const void* argument) {
  return change([](const Standing& now) { return runtime::after_new_user_namespace(now); },
                [=] { return call(argument); });
}

long change_rights_by_number(long number, const long (&words)[6]) {
  const auto call = [&] { return real.syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]); };
  if (!runtime::has_one_thread()) return call();
  return change([&](const Standing& now) { return after_number(now, number, words); }, call);
}

}  // namespace bypass::preload
