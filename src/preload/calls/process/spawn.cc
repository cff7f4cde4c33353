// posix_spawn and its like.
//
// libc's own child shares its parent's memory, and makes its calls inside libc. So where the new program may inherit
// sockets of a port, the child is made here: a forked one, which belongs to the family (vfork.h), does what libc's
// child does, and executes the program as any process of the family does (hand_on.h).
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string_view>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "preload/acceleration.h"
#include "preload/calls/process/vfork.h"
#include "preload/escape.h"
#include "preload/fd_table.h"
#include "preload/numbers.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "preload/uses.h"
#include "runtime/family/passing.h"
#include "socket/family/next_image.h"

namespace bypass::preload {
namespace {

/// What glibc keeps for each action that is added (struct __spawn_action in posix/spawn_int.h), since 2.0. Later
/// versions have added tags alone.
struct Action {
  enum Tag : int { kClose, kDuplicate, kOpen, kChangeFolder, kChangeFolderByNumber, kCloseFrom, kSetForeground };
  struct Open {
    int fd;
    const char* path;
    int flags;
    mode_t mode;
  };

  Tag tag;
  union {
    int fd;  // kClose, kChangeFolderByNumber, kCloseFrom, kSetForeground
    struct {
      int fd, target;
    } duplicate;
    Open open;
    const char* path;
  };
};
static_assert(sizeof(Action) == 32);

std::span<const Action> actions_in(const posix_spawn_file_actions_t* actions) {
  if (actions == nullptr || actions->__used <= 0) return {};
  return {reinterpret_cast<const Action*>(actions->__actions), static_cast<std::size_t>(actions->__used)};
}

/// What a spawn is asked for.
struct Spawn {
  const char* program;
  bool is_searched;  // in the folders of PATH
  std::span<const Action> actions;
  const posix_spawnattr_t* attributes;
  char* const* arguments;
  char* const* environment;
  short flags = 0;
};

constexpr short kKnownFlags = POSIX_SPAWN_RESETIDS | POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF |
                              POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSCHEDPARAM | POSIX_SPAWN_SETSCHEDULER |
                              POSIX_SPAWN_USEVFORK | POSIX_SPAWN_SETSID;

/// Whether the number names something that the next image could go on with.
bool may_go_on(int fd) {
  const Use use(fd, Use::kAny);
  return use && socket::inherited_as(*use) == socket::Inherited::kOnWire;
}

bool inherits_sockets(std::span<const Action> actions) {
  for (const Action& action : actions)
    if (action.tag == Action::kDuplicate && may_go_on(action.duplicate.fd)) return true;
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    const int flags = is_tracked(fd) ? real.fcntl(fd, F_GETFD) : -1;
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0 && may_go_on(fd)) return true;
  }
  return false;
}

// --- In the child. Each returns false with errno.

bool open_at(const Action::Open& action) {
  ::close(action.fd);  // POSIX: as if it had been closed before
  const int fd = ::open(action.path, action.flags, action.mode);
  if (fd < 0 || fd == action.fd) return fd >= 0;
  return ::dup2(fd, action.fd) == action.fd && ::close(fd) == 0;
}

/// A number that is not open is no failure, unless no descriptor can have it.
bool close_number(int fd) {
  if (::close(fd) == 0) return true;
  return fd >= 0 && fd < ::getdtablesize();
}

bool duplicate(int fd, int target) {
  if (fd != target) return ::dup2(fd, target) == target;
  const int flags = ::fcntl(fd, F_GETFD, nullptr);
  return flags >= 0 && ::fcntl(fd, F_SETFD, reinterpret_cast<void*>(static_cast<long>(flags & ~FD_CLOEXEC))) == 0;
}

bool act(const Action& action) {
  switch (action.tag) {
    case Action::kClose:
      return close_number(action.fd);
    case Action::kDuplicate:
      return duplicate(action.duplicate.fd, action.duplicate.target);
    case Action::kOpen:
      return open_at(action.open);
    case Action::kChangeFolder:
      return ::chdir(action.path) == 0;
    case Action::kChangeFolderByNumber:
      return ::fchdir(action.fd) == 0;
    case Action::kCloseFrom:
      ::closefrom(action.fd);
      return true;
    case Action::kSetForeground:
      return ::tcsetpgrp(action.fd, ::getpgrp()) == 0;
  }
  return errno = ENOSYS, false;
}

void set_default_signals(const posix_spawnattr_t& attributes) {
  sigset_t set;
  ::posix_spawnattr_getsigdefault(&attributes, &set);
  for (int signal = 1; signal < NSIG; signal++)
    if (sigismember(&set, signal) == 1) (void)::signal(signal, SIG_DFL);
}

bool set_schedule(const Spawn& spawn) {
  sched_param parameters{};
  int policy = 0;
  ::posix_spawnattr_getschedparam(spawn.attributes, &parameters);
  ::posix_spawnattr_getschedpolicy(spawn.attributes, &policy);
  if ((spawn.flags & POSIX_SPAWN_SETSCHEDULER) != 0) return ::sched_setscheduler(0, policy, &parameters) >= 0;
  return (spawn.flags & POSIX_SPAWN_SETSCHEDPARAM) == 0 || ::sched_setparam(0, &parameters) == 0;
}

bool set_group(const Spawn& spawn) {
  pid_t group = 0;
  ::posix_spawnattr_getpgroup(spawn.attributes, &group);
  return (spawn.flags & POSIX_SPAWN_SETPGROUP) == 0 || ::setpgid(0, group) == 0;
}

/// In libc's order (posix(7), __spawni_child() in glibc).
bool apply_attributes(const Spawn& spawn) {
  if (spawn.attributes == nullptr) return true;
  if ((spawn.flags & POSIX_SPAWN_SETSIGDEF) != 0) set_default_signals(*spawn.attributes);
  if (!set_schedule(spawn)) return false;
  if ((spawn.flags & POSIX_SPAWN_SETSID) != 0 && ::setsid() < 0) return false;
  if (!set_group(spawn)) return false;
  const bool resets = (spawn.flags & POSIX_SPAWN_RESETIDS) != 0;
  return !resets || (::setegid(::getgid()) == 0 && ::seteuid(::getuid()) == 0);
}

/// As execvp(3), but a file that is no program is not given to a shell.
void execute_searched(const Spawn& spawn) {
  const std::string_view name = spawn.program;
  const char* const path = ::getenv("PATH");
  std::string_view folders = path != nullptr ? path : "/bin:/usr/bin";
  bool refused = false;
  char file[PATH_MAX];
  if (name.empty() || name.size() > NAME_MAX) {
    errno = name.empty() ? ENOENT : ENAMETOOLONG;
    return;
  }
  for (bool more = true; more;) {
    const std::size_t end = folders.find(':');
    const std::string_view folder = folders.substr(0, end);
    more = end != std::string_view::npos;
    if (more) folders.remove_prefix(end + 1);
    const int n = snprintf(file, sizeof file, "%.*s%s%s", static_cast<int>(folder.size()), folder.data(),
                           folder.empty() ? "" : "/", spawn.program);
    if (n < 0 || n >= static_cast<int>(sizeof file)) continue;
    ::execve(file, spawn.arguments, spawn.environment);
    refused = refused || errno == EACCES;
    if (errno != EACCES && errno != ENOENT && errno != ESTALE && errno != ENOTDIR && errno != ENODEV &&
        errno != ETIMEDOUT)
      return;
  }
  if (refused) errno = EACCES;
}

void execute(const Spawn& spawn) {
  if (spawn.is_searched && strchr(spawn.program, '/') == nullptr) return execute_searched(spawn);
  ::execve(spawn.program, spawn.arguments, spawn.environment);
}

/// What libc's child does. It returns with errno where the program cannot be executed.
void be_child(const Spawn& spawn, const sigset_t& mask) {
  if (!apply_attributes(spawn)) return;
  for (const Action& action : spawn.actions)
    if (!act(action)) return;
  sigset_t wanted = mask;
  if ((spawn.flags & POSIX_SPAWN_SETSIGMASK) != 0) ::posix_spawnattr_getsigmask(spawn.attributes, &wanted);
  ::sigprocmask(SIG_SETMASK, &wanted, nullptr);
  execute(spawn);
}

// --- In the parent

/// Where the child leaves the errno of what has failed: a page that both have.
class Outcome {
 public:
  Outcome()
      : page_(static_cast<int*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Outcome() {
    if (*this) ::munmap(page_, kBytes);
  }
  Outcome(const Outcome&) = delete;
  Outcome& operator=(const Outcome&) = delete;

  explicit operator bool() const { return page_ != MAP_FAILED; }
  int& error() { return *page_; }

 private:
  static constexpr std::size_t kBytes = 4096;
  int* page_;
};

int spawn_in_family(pid_t* pid, const Spawn& spawn) {
  const socket::CancellationOff off;
  Outcome outcome;
  if (!outcome) return ENOMEM;
  sigset_t all, mask;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &mask);
  const pid_t child = fork_and_wait_for_exec();
  if (child == 0) {
    be_child(spawn, mask);
    outcome.error() = errno != 0 ? errno : ECHILD;
    ::_exit(127);
  }
  const int problem = child < 0 ? errno : outcome.error();
  if (child > 0 && problem != 0) {
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (problem == 0 && pid != nullptr) *pid = child;
  return problem;
}

void before_spawn(const char* program) {
  if (!has_started() || goes_straight()) return;
  runtime::note_new_program();
  (void)note_exec(program);
}

using SpawnCall = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                          char* const*, char* const*);

int spawn_program(SpawnCall libcs, bool is_searched, pid_t* pid, const char* program,
                  const posix_spawn_file_actions_t* actions, const posix_spawnattr_t* attributes,
                  char* const* arguments, char* const* environment) {
  Spawn spawn{program, is_searched, {}, attributes, arguments, environment};
  if (program != nullptr && has_sockets_for_children()) {
    const KeepErrno keep;
    spawn.actions = actions_in(actions);
    if (attributes != nullptr) ::posix_spawnattr_getflags(attributes, &spawn.flags);
    if ((spawn.flags & ~kKnownFlags) == 0 && inherits_sockets(spawn.actions)) return spawn_in_family(pid, spawn);
  }
  before_spawn(program);
  return libcs(pid, program, actions, attributes, arguments, environment);
}

BYPASS_EXPORT(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t * actions, int fd, int target)) {
  if (is_tracked(fd)) note_given_away(fd);
  return real.posix_spawn_file_actions_adddup2(actions, fd, target);
}

BYPASS_EXPORT(int, posix_spawn,
              (pid_t * pid, const char* path, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const* argv, char* const* environment)) {
  return spawn_program(real.posix_spawn, false, pid, path, actions, attributes, argv, environment);
}

BYPASS_EXPORT(int, posix_spawnp,
              (pid_t * pid, const char* file, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const* argv, char* const* environment)) {
  return spawn_program(real.posix_spawnp, true, pid, file, actions, attributes, argv, environment);
}

// libc's own posix_spawn: a shell inherits what every program inherits.
BYPASS_EXPORT(int, system, (const char* command)) {
  if (command != nullptr) before_spawn("system");
  return real.system(command);
}

BYPASS_EXPORT(FILE*, popen, (const char* command, const char* mode)) {
  before_spawn("popen");
  return real.popen(command, mode);
}

}  // namespace
}  // namespace bypass::preload
