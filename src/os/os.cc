#include "os/os.h"

#include <sys/stat.h>

#include <cstring>

namespace bypass::os {
namespace {

// Used instead of snprintf, which may take locks and allocate: this runs in signal handlers and after fork.
char* append(char* at, const char* text) {
  while (*text != 0) *at++ = *text++;
  *at = 0;
  return at;
}

char* append(char* at, std::uint32_t number) {
  char digits[12];
  int n = 0;
  do {
    digits[n++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  while (n > 0) *at++ = digits[--n];
  *at = 0;
  return at;
}

/// Field 22. The command (field 2) may contain spaces and parentheses: fields are counted from the last ')'.
std::uint64_t parse_start_time(const char* text, std::size_t length) {
  const auto* at = static_cast<const char*>(memrchr(text, ')', length));
  const char* const end = text + length;
  constexpr int kSpaces = 20;  // after the command
  for (int spaces = 0; at != nullptr && spaces < kSpaces; spaces++) {
    at = static_cast<const char*>(std::memchr(at, ' ', static_cast<std::size_t>(end - at)));
    if (at != nullptr) at++;
  }
  std::uint64_t ticks = 0;
  for (; at != nullptr && at < end && *at >= '0' && *at <= '9'; at++) ticks = ticks * 10 + std::uint64_t(*at - '0');
  return ticks;
}

}  // namespace

std::uint64_t start_time_of(std::uint32_t pid) {
  char path[40];
  append(append(append(path, "/proc/"), pid), "/stat");
  const long fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const long length = read(static_cast<int>(fd), text, sizeof text);
  close(static_cast<int>(fd));
  return length <= 0 ? 0 : parse_start_time(text, static_cast<std::size_t>(length));
}

// A thread that has ended has given up its memory, and /proc/PID/exe then names no program.
bool has_first_thread_ended(std::uint32_t pid) {
  char path[40];
  struct stat status {};
  const auto look = [&](const char* name) {
    append(append(append(path, "/proc/"), pid), name);
    return call(SYS_newfstatat, AT_FDCWD, address(path), address(&status), 0);
  };
  return look("/exe") == -ENOENT && look("/stat") == 0;
}

std::uint64_t inode_of(int fd) {
  struct stat status {};
  return call(SYS_fstat, fd, address(&status)) == 0 ? status.st_ino : 0;
}

std::uint64_t pid_namespace() {
  struct stat status {};
  const long r = call(SYS_newfstatat, AT_FDCWD, address("/proc/self/ns/pid"), address(&status), 0);
  return r == 0 ? status.st_ino : 0;
}

}  // namespace bypass::os
