// The exec family and posix_spawn. libc's own forms call each other internally, so each is an entry of its own.
#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <unistd.h>

#include "preload/acceleration.h"
#include "preload/calls/process/process.h"
#include "preload/escape.h"
#include "preload/fd_table.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "runtime/family/passing.h"

namespace bypass::preload {
namespace {

constexpr int kExecArguments = 1 << 16;

// Number of an execl form's arguments, including the null; 0: more than fit on the stack.
int count_arguments(va_list arguments) {
  for (int count = 2; count < kExecArguments; count++) {
    if (va_arg(arguments, char*) == nullptr) return count;
  }
  return 0;
}

void collect_arguments(const char* first, char** out, va_list arguments) {
  *out++ = const_cast<char*>(first);
  while ((*out++ = va_arg(arguments, char*)) != nullptr) {
  }
}

// Runs `body(argv, rest)` with the arguments of an execl form; `rest` is what follows the null.
#define BYPASS_WITH_ARGUMENTS(first, body)                                                         \
  va_list counting, arguments;                                                                     \
  va_start(counting, first);                                                                       \
  int count = (first) != nullptr ? count_arguments(counting) : 1;                                  \
  va_end(counting);                                                                                \
  if (count == 0) {                                                                                \
    errno = E2BIG;                                                                                 \
    return failed(-1);                                                                             \
  }                                                                                                \
  char** argv = static_cast<char**>(__builtin_alloca(static_cast<size_t>(count) * sizeof(char*))); \
  va_start(arguments, first);                                                                      \
  argv[0] = nullptr;                                                                               \
  if ((first) != nullptr) collect_arguments(first, argv, arguments);                               \
  body;                                                                                            \
  va_end(arguments)

// Called when an exec has returned.
int failed(int result) {
  after_failed_exec();
  return result;
}

BYPASS_EXPORT(int, execve, (const char* path, char* const* argv, char* const* environment)) {
  return failed(real.execve(path, argv, before_exec({path}, environment)));
}

BYPASS_EXPORT(int, execv, (const char* path, char* const* argv)) {
  return failed(real.execve(path, argv, before_exec({path}, environ)));
}

BYPASS_EXPORT(int, execvp, (const char* file, char* const* argv)) {
  return failed(real.execvpe(file, argv, before_exec({file, true}, environ)));
}

BYPASS_EXPORT(int, execvpe, (const char* file, char* const* argv, char* const* environment)) {
  return failed(real.execvpe(file, argv, before_exec({file, true}, environment)));
}

BYPASS_EXPORT(int, fexecve, (int fd, char* const* argv, char* const* environment)) {
  (void)before_exec({nullptr}, environment);
  return failed(real.fexecve(fd, argv, environment));
}

BYPASS_EXPORT(int, execveat,
              (int directory, const char* path, char* const* argv, char* const* environment, int flags)) {
  (void)before_exec({nullptr}, environment);
  return failed(real.execveat(directory, path, argv, environment, flags));
}

BYPASS_EXPORT(int, execl, (const char* path, const char* first, ...)) {
  BYPASS_WITH_ARGUMENTS(first, int result = failed(real.execve(path, argv, before_exec({path}, environ))));
  return result;
}

BYPASS_EXPORT(int, execlp, (const char* file, const char* first, ...)) {
  BYPASS_WITH_ARGUMENTS(first, int result = failed(real.execvpe(file, argv, before_exec({file, true}, environ))));
  return result;
}

BYPASS_EXPORT(int, execle, (const char* path, const char* first, ...)) {
  BYPASS_WITH_ARGUMENTS(
      first, int result = failed(real.execve(path, argv, before_exec({path}, va_arg(arguments, char* const*)))));
  return result;
}

void before_spawn(const char* program) {
  if (!has_started() || goes_straight()) return;
  runtime::note_new_program();
  (void)note_exec(program);
}

BYPASS_EXPORT(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t * actions, int fd, int target)) {
  if (is_tracked(fd)) note_given_away(fd);
  return real.posix_spawn_file_actions_adddup2(actions, fd, target);
}

BYPASS_EXPORT(int, posix_spawn,
              (pid_t * pid, const char* path, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const* argv, char* const* environment)) {
  before_spawn(path);
  return real.posix_spawn(pid, path, actions, attributes, argv, environment);
}

BYPASS_EXPORT(int, posix_spawnp,
              (pid_t * pid, const char* file, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const* argv, char* const* environment)) {
  before_spawn(file);
  return real.posix_spawnp(pid, file, actions, attributes, argv, environment);
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
