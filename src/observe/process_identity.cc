#include "observe/process_identity.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace bypass::observe {
namespace {

// Field 22 of /proc/PID/stat. The command before it may contain spaces and parentheses, so fields are counted from the
// last ')'.
std::uint64_t parse_start_time(std::string_view stat) {
  const std::size_t end_of_command = stat.rfind(')');
  if (end_of_command == std::string_view::npos || end_of_command + 2 >= stat.size()) return 0;
  stat.remove_prefix(end_of_command + 2);
  if (stat.front() == 'Z' || stat.front() == 'X') return 0;
  constexpr int kFieldsBetween = 19;  // from the state (3) to the start time (22)
  for (int i = 0; i < kFieldsBetween; i++) {
    const std::size_t space = stat.find(' ');
    if (space == std::string_view::npos) return 0;
    stat.remove_prefix(space + 1);
  }
  std::uint64_t ticks = 0;
  std::from_chars(stat.data(), stat.data() + stat.size(), ticks);
  return ticks;
}

/// The beginning of /proc/PID/NAME; empty if it cannot be read.
template <std::size_t size>
std::string_view read_of(pid_t pid, const char* name, char (&text)[size]) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/%d/%s", static_cast<int>(pid), name);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t length = read(fd, text, size);
  close(fd);
  return {text, length <= 0 ? 0 : static_cast<std::size_t>(length)};
}

}  // namespace

std::uint64_t start_time_of(pid_t pid) {
  char text[1024];
  return parse_start_time(read_of(pid, "stat", text));
}

bool runs_as(pid_t pid, uid_t user) {
  char text[1024];
  const std::string_view status = read_of(pid, "status", text);
  const std::size_t at = status.find("\nUid:");  // real, effective, saved, of the file system
  if (at == std::string_view::npos) return false;
  const char* next = status.data() + at + sizeof "\nUid:" - 1;
  for (int i = 0; i < 3; i++) {
    while (next < status.end() && *next == '\t') next++;
    uid_t one = 0;
    const auto [end, error] = std::from_chars(next, status.end(), one);
    if (error != std::errc{}) return false;
    if (one == user) return true;
    next = end;
  }
  return false;
}

std::uint64_t own_pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

ProcessIdentity self_identity() {
  const pid_t pid = getpid();
  return {pid, start_time_of(pid), own_pid_namespace()};
}

Liveness liveness(const ProcessIdentity& identity) {
  if (identity.pid_namespace != own_pid_namespace()) return Liveness::kElsewhere;
  const std::uint64_t now = start_time_of(identity.pid);
  if (now == 0) return Liveness::kDead;
  return identity.start_time == 0 || now == identity.start_time ? Liveness::kAlive : Liveness::kDead;
}

// The kernel's name for the process. glibc's name points into argv[0], which a program may have overwritten
// (setproctitle).
void command_of_self(char* out, std::size_t size) {
  const int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  const ssize_t length = fd < 0 ? -1 : read(fd, out, size - 1);
  if (fd >= 0) close(fd);
  if (length <= 1) {
    std::snprintf(out, size, "%s", program_invocation_short_name);
  } else {
    out[length - 1] = 0;  // the newline
  }
}

}  // namespace bypass::observe
