// What the commands of `bypass` share: their options, and how they end.
#pragma once

#include <string>
#include <vector>

#include "observe/reader.h"

namespace bypass::tool {

// Exit codes. A script tells "nothing there" from "called wrongly".
inline constexpr int kOk = 0;
// no process was found, the configuration has problems, or the output could not be written
inline constexpr int kNothing = 1;
inline constexpr int kUsage = 2;
// env(1)'s exit code for a failure of its own, as kCannotRun: most of a program's own codes lie below.
inline constexpr int kNotStarted = 125;

inline constexpr int kLargestPid = 1 << 22;

struct ShowOptions {
  int pid = 0;  // 0: every process
  bool json = false;
  bool all = false;  // counters that are zero, too
};

/// The options are those of ss(8).
struct SsOptions {
  bool tcp = false, udp = false;  // neither: both
  bool all = false, listening = false;
  bool numeric = false, processes = false, extended = false, info = false;
  bool no_header = false, one_line = false;
  bool json = false;
  int pid = 0;                      // 0: every process
  std::vector<std::string> filter;  // ss_filter.h
};

struct ConfigOptions {
  int pid = 0;  // 0: for a program started from here
  bool json = false;
  bool markdown = false;  // docs/settings.md
  bool toml = false;      // config/bypass.toml
  std::string profile;    // config/profiles/NAME.toml
};

struct SetOptions {
  int pid = 0;       // 0: missing
  std::string what;  // NAME=VALUE; empty: missing
};

int run_stat(const ShowOptions& options);
int run_why(const ShowOptions& options);
int run_ss(const SsOptions& options);
/// `bypass run`: runs the program in `words`. Returns only when the program does not begin.
int run_program(const std::vector<std::string>& words);
/// `bypass verbs-trace`, in the same way.
int trace_verbs(const std::vector<std::string>& words);
int run_config(const ConfigOptions& options);
int run_set(const SetOptions& options);

/// The processes that a command is about, from the run directory of this user's configuration (for root: from every
/// user's). Prints which ones cannot be read. If there are none, it prints why that may be.
observe::Listing find_processes(int pid);
/// The same, but prints nothing.
observe::Listing read_processes(int pid);

}  // namespace bypass::tool
