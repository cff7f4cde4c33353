// The exec family. libc's own forms call each other internally, so each is an entry of its own.
#include <errno.h>
#include <stdarg.h>
#include <unistd.h>

#include "preload/calls/process/process.h"
#include "preload/symbols.h"

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

}  // namespace
}  // namespace bypass::preload
