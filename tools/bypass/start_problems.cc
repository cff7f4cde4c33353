#include "start_problems.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "config/port_check.h"
#include "config/settings.h"
#include "os/log/run_dir.h"

namespace bypass::tool {
namespace {

using runtime::Config;
using runtime::ConfigProblem;

/// Describes the problem under the name that the user knows.
ConfigProblem problem_of(const Config& config, const char* variable, std::string value, std::string text) {
  ConfigProblem problem = config.problem_of(variable, std::move(text));
  const runtime::Setting& setting = *runtime::setting_by_env(variable);
  if (config.values[runtime::setting_index(setting)].origin == runtime::Origin::kFile) problem.name = setting.key;
  problem.value = std::move(value);
  return problem;
}

std::string parent_of(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

/// Why the directory could not be made. The first process makes a missing directory, but not the folder above it.
std::string making_problem(const std::string& path) {
  const std::string parent = parent_of(path);
  if (faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return "";
  const std::string why = std::strerror(errno);
  return fmt::format("cannot be made in the folder {}: {}; accepted is {}", parent, why,
                     runtime::accepted_text(*runtime::setting_by_env("BYPASS_RUN_DIR")));
}

/// Tests the directory for the way a process uses it, which takes more rights than reading it.
std::string run_dir_problem(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 && errno == ENOENT) return making_problem(path);
  std::string problem;
  const int fd = runtime::open_run_dir(path, true, problem);
  if (fd < 0) return problem;
  if (!runtime::may_write(fd))
    problem = fmt::format("cannot be written to: {}; accepted is {}", std::strerror(errno),
                          runtime::accepted_text(*runtime::setting_by_env("BYPASS_RUN_DIR")));
  close(fd);
  return problem;
}

}  // namespace

std::vector<ConfigProblem> start_problems(const Config& config) {
  std::vector<ConfigProblem> problems;
  for (const runtime::PortConfig& port : config.ports)
    if (std::string problem = runtime::quick_check(config, port); !problem.empty())
      problems.push_back(problem_of(config, "BYPASS_PORT", runtime::port_text(port), std::move(problem)));
  if (config.rdma == runtime::RdmaMode::kDevice) {
    runtime::PortConfig device;
    device.kind = "verbs";
    device.target = config.rdma_device;
    if (std::string problem = runtime::quick_check(config, device); !problem.empty())
      problems.push_back(
          problem_of(config, "BYPASS_RDMA", config.rdma_device,
                     problem + "; accepted is " + runtime::accepted_text(*runtime::setting_by_env("BYPASS_RDMA"))));
  }
  if (!config.run_dir.empty())
    if (std::string problem = run_dir_problem(config.run_dir); !problem.empty())
      problems.push_back(problem_of(config, "BYPASS_RUN_DIR", config.run_dir, std::move(problem)));
  return problems;
}

}  // namespace bypass::tool
