// stdio's functions that make, change or go around a stream: fdopen, freopen, perror, dprintf. What streams read and
// write passes through preload/streams.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include <memory>

#include "preload/numbers.h"
#include "preload/streams.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

BYPASS_EXPORT(FILE*, fdopen, (int fd, const char* mode)) {
  if (is_tracked(fd) && !are_streams_caught()) note_uncaught_stream(fd);
  return real.fdopen(fd, mode);
}

// libc's freopen() puts the new file under the number by a call that nobody sees. Before that, it writes what the
// stream holds.
template <typename Reopen>
FILE* reopen(FILE* stream, Reopen reopen_in_libc) {
  const int fd = stream != nullptr ? fileno_unlocked(stream) : -1;
  if (fd >= 0 && is_tracked(fd)) {
    const KeepErrno keep;
    ::fflush(stream);
    leave_number(fd);
  }
  return reopen_in_libc();
}

BYPASS_EXPORT(FILE*, freopen, (const char* path, const char* mode, FILE* stream)) {
  return reopen(stream, [=] { return real.freopen(path, mode, stream); });
}

BYPASS_EXPORT(FILE*, freopen64, (const char* path, const char* mode, FILE* stream)) {
  return reopen(stream, [=] { return real.freopen64(path, mode, stream); });
}

// While stderr is neither of bytes nor wide, libc's perror() writes to a stream of its own, over a duplicate of the
// number that nobody sees. This is perror() in its steps (stdio-common/perror.c).
[[gnu::noinline]] void print_error(const char* text) {
  const int error = errno;
  const int copy = ::dup(fileno_unlocked(stderr));
  FILE* const stream = copy >= 0 ? ::fdopen(copy, "w+") : nullptr;
  if (stream == nullptr) {
    if (copy >= 0) ::close(copy);
    errno = error;
    return real.perror(text);
  }
  const bool has_text = text != nullptr && *text != 0;
  char room[256];
  fprintf(stream, "%s%s%s\n", has_text ? text : "", has_text ? ": " : "", strerror_r(error, room, sizeof room));
  ::fclose(stream);
}

BYPASS_EXPORT(void, perror, (const char* text)) {
  if (!is_tracked(fileno_unlocked(stderr)) || fwide(stderr, 0) != 0) [[likely]]
    return real.perror(text);
  print_error(text);
}

int print(int fd, const char* format, va_list arguments) {
  char* raw = nullptr;
  int length = ::vasprintf(&raw, format, arguments);
  std::unique_ptr<char, decltype(&free)> text(raw, free);
  if (length < 0) return -1;
  return write_all(fd, text.get(), static_cast<size_t>(length)) == length ? length : -1;
}

BYPASS_EXPORT(int, vdprintf, (int fd, const char* format, va_list arguments)) {
  if (!is_tracked(fd)) [[likely]]
    return real.vdprintf(fd, format, arguments);
  return print(fd, format, arguments);
}

BYPASS_EXPORT(int, __vdprintf_chk, (int fd, int flag, const char* format, va_list arguments)) {
  if (!is_tracked(fd)) [[likely]]
    return real.__vdprintf_chk(fd, flag, format, arguments);
  return print(fd, format, arguments);
}

BYPASS_EXPORT(int, dprintf, (int fd, const char* format, ...)) {
  va_list arguments;
  va_start(arguments, format);
  int result = bypass_vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

BYPASS_EXPORT(int, __dprintf_chk, (int fd, int flag, const char* format, ...)) {
  va_list arguments;
  va_start(arguments, format);
  int result = bypass___vdprintf_chk(fd, flag, format, arguments);
  va_end(arguments);
  return result;
}

}  // namespace
}  // namespace bypass::preload
