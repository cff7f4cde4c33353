#include "os/log/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "os/own/cancellation.h"

namespace bypass::runtime {

constinit std::atomic<LogLevel> g_log_level{LogLevel::kWarn};

namespace {

constexpr std::size_t kLineBytes = 1024;  // longer lines are cut; PIPE_BUF (4096) keeps one write whole
constexpr std::int64_t kBurst = 50;       // lines that may come at once
constexpr std::int64_t kPerSecond = 20;   // lines a second after that

int plain_getfl(int fd) {
  return fcntl(fd, F_GETFL);
}

constinit LogCalls g_calls{::write, plain_getfl};
constinit std::atomic<int> g_fd{-1};

// What a descriptor referred to when the log started.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  bool known = false;
  [[nodiscard]] bool is(const struct stat& now) const { return now.st_dev == device && now.st_ino == inode; }
};
constinit Identity g_stderr, g_file;

Identity identity_of(int fd) {
  struct stat now {};
  if (fstat(fd, &now) != 0) return {};
  return {now.st_dev, now.st_ino, true};
}

// Token bucket. A lost update between threads lets one line more or fewer through, which does no harm.
constinit std::atomic<std::int64_t> g_tokens{kBurst};
constinit std::atomic<std::int64_t> g_refilled_second{0};
constinit std::atomic<std::int64_t> g_left_out{0};

std::int64_t seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec;
}

bool take_token() {
  const std::int64_t now = seconds_now();
  const std::int64_t before = g_refilled_second.exchange(now, std::memory_order_relaxed);
  if (now > before) {
    const std::int64_t refill = (now - before > kBurst) ? kBurst : (now - before) * kPerSecond;
    const std::int64_t tokens = g_tokens.load(std::memory_order_relaxed);
    g_tokens.store(std::min(kBurst, std::max<std::int64_t>(tokens, 0) + refill), std::memory_order_relaxed);
  }
  if (g_tokens.fetch_sub(1, std::memory_order_relaxed) > 0) return true;
  g_left_out.fetch_add(1, std::memory_order_relaxed);
  return false;
}

// Descriptor 2 may now be the program's data file or a socket. It is still a place for messages if it is the same file,
// a terminal, or a file opened to append, as logs are.
bool stderr_takes_messages() {
  struct stat now {};
  if (fstat(STDERR_FILENO, &now) != 0) return false;
  if (!g_stderr.known) return true;  // not started yet: nothing can have changed
  if (g_stderr.is(now)) return true;
  if (S_ISCHR(now.st_mode)) return true;
  return S_ISREG(now.st_mode) && (g_calls.fcntl_getfl(STDERR_FILENO) & O_APPEND) != 0;
}

// A forked child's program may close the log file, and the child's next file may get the number.
bool still_the_file(int fd) {
  struct stat now {};
  return fstat(fd, &now) == 0 && g_file.is(now);
}

// Lines are written with locks held, so this must be no cancellation point.
void put(const char* line, std::size_t length) {
  const socket::CancellationOff off;
  const int saved_errno = errno;
  const int fd = g_fd.load(std::memory_order_relaxed);
  if (fd >= 0) {
    if (still_the_file(fd)) (void)!g_calls.write(fd, line, length);
  } else if (stderr_takes_messages()) {
    (void)!g_calls.write(STDERR_FILENO, line, length);
  }
  errno = saved_errno;
}

// The line is complete and ends in a newline, even if it had to be cut. snprintf is safe in a signal handler here:
// glibc allocates only for huge widths and locale-dependent conversions, which are not used.
void format_and_put(const char* format, std::va_list arguments) {
  char line[kLineBytes];
  const int prefix = std::snprintf(line, sizeof line, "bypass[%d]: ", static_cast<int>(getpid()));
  const auto start = static_cast<std::size_t>(prefix);
  const int body = std::vsnprintf(line + start, sizeof line - start - 1, format, arguments);
  if (body < 0) return;
  std::size_t length = std::min(start + static_cast<std::size_t>(body), sizeof line - 2);
  while (length > start && line[length - 1] == '\n') length--;
  line[length++] = '\n';
  put(line, length);
}

}  // namespace

void log_always(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  format_and_put(format, arguments);
  va_end(arguments);
}

void log_line_v(LogLevel level, const char* format, std::va_list arguments) {
  if (!log_enabled(level)) return;
  if (level <= LogLevel::kInfo && !take_token()) return;
  if (const std::int64_t left_out = g_left_out.exchange(0, std::memory_order_relaxed); left_out > 0)
    log_always("%lld messages left out: too many at once", static_cast<long long>(left_out));
  format_and_put(format, arguments);
}

void log_line(LogLevel level, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  log_line_v(level, format, arguments);
  va_end(arguments);
}

void log_text(LogLevel level, const char* text) {
  log_line(level, "%s", text);
}

void set_log_calls(const LogCalls& calls) {
  if (calls.write != nullptr) g_calls.write = calls.write;
  if (calls.fcntl_getfl != nullptr) g_calls.fcntl_getfl = calls.fcntl_getfl;
}

void start_log(LogLevel level, int fd) {
  g_stderr = identity_of(STDERR_FILENO);
  g_file = identity_of(fd);
  g_fd.store(fd, std::memory_order_relaxed);
  g_log_level.store(level, std::memory_order_relaxed);
}

int log_descriptor() {
  return g_fd.load(std::memory_order_relaxed);
}

int open_log_file(const char* path, int (*copy)(int fd)) {
  const int low = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
  if (low < 0) return low;
  const int high = copy(low);
  if (high < 0) return low;  // there is no number above the limit: a low number is better than none
  close(low);
  return high;
}

const char* log_level_name(LogLevel level) {
  static constexpr const char* kNames[] = {"error", "warn", "info", "debug", "trace"};
  return kNames[static_cast<std::size_t>(level)];
}

}  // namespace bypass::runtime
