// fdopen and dprintf. libc's streams read, write and close their descriptor inside libc, where no interposer is called.
// So a stream over a socket of ours has functions of its own.
#include "preload/calls/stdio.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "os/own/cancellation.h"
#include "preload/numbers.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

std::atomic<bool> have_streams{false};

int number_of(void* cookie) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(cookie));
}

ssize_t read_stream(void* cookie, char* buffer, size_t length) {
  return ::read(number_of(cookie), buffer, length);
}

ssize_t write_stream(void* cookie, const char* buffer, size_t length) {
  size_t written = 0;
  while (written < length) {
    ssize_t result = ::write(number_of(cookie), buffer + written, length - written);
    if (result <= 0) break;
    written += static_cast<size_t>(result);
  }
  return static_cast<ssize_t>(written);
}

int close_stream(void* cookie) {
  const socket::CancellationOff off;  // fclose with nothing to write is no cancellation point
  return ::close(number_of(cookie));
}

FILE* open_stream(int fd, const char* mode) {
  cookie_io_functions_t functions{.read = read_stream, .write = write_stream, .seek = nullptr, .close = close_stream};
  FILE* stream = fopencookie(reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), mode, functions);
  if (stream == nullptr) return nullptr;
  stream->_fileno = fd;  // for fileno(); a stream with functions does not use it otherwise
  have_streams = true;
  return stream;
}

BYPASS_EXPORT(FILE*, fdopen, (int fd, const char* mode)) {
  if (!is_tracked(fd)) [[likely]]
    return real.fdopen(fd, mode);
  return Use(fd) ? open_stream(fd, mode) : real.fdopen(fd, mode);
}

int print(int fd, const char* format, va_list arguments) {
  char* raw = nullptr;
  int length = ::vasprintf(&raw, format, arguments);
  std::unique_ptr<char, decltype(&free)> text(raw, free);
  if (length < 0) return -1;
  return write_stream(reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), raw, static_cast<size_t>(length)) ==
                 length
             ? length
             : -1;
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

void flush_streams() {
  if (have_streams) ::fflush(nullptr);
}

}  // namespace bypass::preload
