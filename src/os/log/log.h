// The log: complete lines on standard error or in BYPASS_LOG_FILE, never on the program's standard output.
//
// A line is formatted on the stack and written by one write(). So any thread may write it, from a signal handler, with
// any lock held. Nothing is allocated. Errors, warnings and information are limited in rate (a line says how many were
// left out). Debug and trace are not, because the user asked for them.
//
// The log needs libc's own functions before interposing begins (set_log_calls()); until then it calls them by name.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

#include "os/log/log_level.h"

namespace bypass::runtime {

/// libc's functions that the log needs, as the preload layer resolved them.
struct LogCalls {
  ssize_t (*write)(int, const void*, std::size_t) = nullptr;
  int (*fcntl_getfl)(int) = nullptr;  // fcntl(fd, F_GETFL)
};
void set_log_calls(const LogCalls& calls);

/// Sets level and target. `fd` -1: standard error, as long as descriptor 2 refers to the same file as now. (A daemon
/// closes it, and its next file gets the number: that file must not receive our lines.)
void start_log(LogLevel level, int fd);

/// The log file's descriptor; -1: no log file. A forked child keeps writing to it, as long as it is the same file.
int log_descriptor();

/// Opens a log file for start_log(): for appending, CLOEXEC, at a number that `copy` finds. -1: errno says why it
/// failed.
int open_log_file(const char* path, int (*copy)(int fd));

extern std::atomic<LogLevel> g_log_level;
inline bool log_enabled(LogLevel level) {
  return level <= g_log_level.load(std::memory_order_relaxed);
}

[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...);
void log_line_v(LogLevel level, const char* format, std::va_list arguments);

/// For Host::log: a text that is already complete.
void log_text(LogLevel level, const char* text);

/// Ignores level and rate: for the crash report.
[[gnu::format(printf, 1, 2)]] void log_always(const char* format, ...);

const char* log_level_name(LogLevel level);

// The arguments are evaluated only when the level is on.
#define BYPASS_LOG(level, ...)                                                                    \
  do {                                                                                            \
    if (::bypass::runtime::log_enabled(level)) ::bypass::runtime::log_line((level), __VA_ARGS__); \
  } while (0)
#define BYPASS_LOG_ERROR(...) BYPASS_LOG(::bypass::LogLevel::kError, __VA_ARGS__)
#define BYPASS_LOG_WARN(...) BYPASS_LOG(::bypass::LogLevel::kWarn, __VA_ARGS__)
#define BYPASS_LOG_INFO(...) BYPASS_LOG(::bypass::LogLevel::kInfo, __VA_ARGS__)
#define BYPASS_LOG_DEBUG(...) BYPASS_LOG(::bypass::LogLevel::kDebug, __VA_ARGS__)
#define BYPASS_LOG_TRACE(...) BYPASS_LOG(::bypass::LogLevel::kTrace, __VA_ARGS__)

}  // namespace bypass::runtime
