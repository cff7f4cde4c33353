// Finds the processes, and tells why there may be none.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "command.h"
#include "config/config.h"
#include "config/config_toml.h"
#include "config/settings_text.h"
#include "os/log/run_dir.h"

namespace bypass::tool {
namespace {

namespace fs = std::filesystem;

/// The configuration in the command's own environment.
const runtime::Config& configuration() {
  static const runtime::Config config = runtime::load_config(environ, runtime::read_toml);
  return config;
}

/// Tells why a run directory is refused. It is not searched then.
void report_run_dir_problem() {
  for (const runtime::ConfigProblem& problem : configuration().problems)
    if (problem.name == "BYPASS_RUN_DIR" || problem.name == "run_dir")
      fmt::print(stderr, "bypass: {}\n", problem.message());
}

/// Adds the user of each name in /dev/shm or /run/user that is a user's number, perhaps with digits behind.
void add_users(const char* folder, std::string_view front, std::set<uid_t>& users) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(front)) continue;
    const std::string_view number = std::string_view(name).substr(front.size());
    if (const auto user = runtime::parse_number(number.substr(0, number.find('-'))))
      users.insert(static_cast<uid_t>(*user));
  }
}

// Root sees every user's default directories; the one that named a directory means that one.
std::vector<std::string> run_dirs() {
  const runtime::Config& config = configuration();
  if (!config.run_dir.empty()) return {config.run_dir};
  std::set<uid_t> users{geteuid()};
  if (geteuid() == 0) {
    add_users("/dev/shm", "bypass-", users);
    add_users("/run/user", "", users);
  }
  std::vector<std::string> found;
  for (const uid_t user : users)
    for (std::string& path : runtime::run_dirs_of(user)) found.push_back(std::move(path));
  if (found.empty()) found.push_back(runtime::run_dir_path_of(geteuid()));
  return found;
}

bool has_library(int pid, int& error) {
  errno = 0;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  error = maps.good() ? 0 : errno;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/libbypass.so") != std::string::npos) return true;
  return false;
}

void explain_pid(int pid) {
  if (!fs::exists(fmt::format("/proc/{}", pid))) {
    fmt::print(stderr, "bypass: there is no process {}\n", pid);
    return;
  }
  int error = 0;
  const bool loaded = has_library(pid, error);
  if (error != 0) {
    fmt::print(stderr,
               "bypass: process {} cannot be looked at, so that it is not known whether it uses libbypass: {}\n", pid,
               std::strerror(error));
  } else if (loaded) {
    fmt::print(stderr,
               "bypass: process {} has libbypass.so loaded and has not used it: it has opened no internet socket, it "
               "has neither a port (BYPASS_PORT) nor leave to share memory (BYPASS_LOCAL=off), it is the forked child "
               "of a process that uses it, or it may not write the run directory (BYPASS_RUN_DIR)\n",
               pid);
  } else {
    fmt::print(stderr, "bypass: process {} does not run on libbypass: start it with LD_PRELOAD=libbypass.so\n", pid);
  }
}

void explain_none(const std::vector<std::string>& dirs) {
  fmt::print(stderr,
             "bypass: no process uses libbypass now (looked in {}). A process appears there with its first internet "
             "socket; one that runs with another BYPASS_RUN_DIR is found with the same variable set here\n",
             fmt::format("{}", fmt::join(dirs, ", ")));
}

}  // namespace

observe::Listing read_processes(int pid) {
  observe::Listing all;
  for (const std::string& dir : run_dirs()) {
    observe::Listing one = observe::read_run_dir(dir, pid);
    std::move(one.processes.begin(), one.processes.end(), std::back_inserter(all.processes));
    std::move(one.problems.begin(), one.problems.end(), std::back_inserter(all.problems));
  }
  return all;
}

observe::Listing find_processes(int pid) {
  observe::Listing all = read_processes(pid);
  report_run_dir_problem();
  for (const std::string& problem : all.problems) fmt::print(stderr, "bypass: {}\n", problem);
  if (all.processes.empty()) pid != 0 ? explain_pid(pid) : explain_none(run_dirs());
  return all;
}

}  // namespace bypass::tool
