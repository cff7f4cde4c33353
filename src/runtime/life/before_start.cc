#include "runtime/life/before_start.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "config/settings.h"
#include "os/log/environment_copy.h"
#include "os/log/log.h"
#include "os/log/run_dir.h"
#include "os/own/own_work.h"
#include "runtime/high_numbers.h"
#include "runtime/host.h"
#include "runtime/ports/plugin.h"
#include "stack/stack.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

constinit EnvironmentCopy g_environment;
Config* g_config = nullptr;
observe::Region* g_region = nullptr;
bool g_region_stays = false;

/// A process under BYPASS_STRICT ends with this status when something cannot be set up as asked.
constexpr int kStrictStatus = 78;

Config* load() {
  auto* config = new Config(load_config(g_environment.entries(), toml_reader()));
  config->rules.keep_program(g_environment.program());
  if (*g_environment.left_out() != 0)
    config->problems.push_back({g_environment.left_out(), "", "environment",
                                "finds no room; accepted are " + std::to_string(EnvironmentCopy::kMaxEntries) +
                                    " variables of " + std::to_string(EnvironmentCopy::kMaxBytes) + " bytes together"});
  return config;
}

void open_log(Config& config) {
  int fd = -1;
  if (!config.log_file.empty()) {
    fd = open_log_file(config.log_file.c_str(), copy_high);
    if (fd < 0)
      config.problems.push_back(config.problem_of(
          "BYPASS_LOG_FILE", std::string("cannot be opened for writing: ") + strerror(errno) + "; accepted is " +
                                 accepted_text(*setting_by_env("BYPASS_LOG_FILE"))));
    else
      own_descriptor(fd, true);
  }
  start_log(config.log_level, fd);
}

std::string settings_text(const Config& config) {
  std::string text;
  for (const Setting& setting : settings()) {
    const SettingValue& value = config.values[setting_index(setting)];
    if (value.origin == Origin::kDefault) continue;
    for (const std::string_view part : {setting.key, std::string_view(value.text), std::string_view(value.where)})
      text.append(part).push_back('\0');
  }
  return text;
}

/// The stack's counters, followed by those that publish() adds.
std::vector<CounterInfo> counter_table() {
  const auto stack = stack_counter_table();
  std::vector<CounterInfo> table(stack.begin(), stack.end());
  table.push_back({"local_shared", "connections", "within the host, that got memory which both ends share"});
  table.push_back({"local_refused", "connections", "within the host, that did not, and stay the kernel's"});
  table.push_back({"local_at_once", "calls", "that read or wrote such memory and had nothing else to do"});
  table.push_back({"at_once", "calls", "that read or wrote a connection of the stack's and had nothing else to do"});
  table.push_back({"rdma_links", "links", "to accelerated peers over RDMA, that have come up"});
  table.push_back({"rdma_links_failed", "links", "that were lost, and whose connections went on over TCP"});
  table.push_back({"rdma_lanes", "connections", "that were given a place on a link"});
  table.push_back({"rdma_returned", "connections", "that gave it back while they lived"});
  table.push_back({"shm_links", "links", "to accelerated peers on this host over shared memory, that have come up"});
  table.push_back({"shm_links_failed", "links", "that were lost, and whose connections went on over TCP"});
  table.push_back({"shm_lanes", "connections", "that were given a place on a link"});
  table.push_back({"shm_returned", "connections", "that gave it back while they lived"});
  return table;
}

/// Tells that another run directory is used. Anybody may make /dev/shm/bypass-UID before the user with that UID does.
void report_other_run_dir(const std::string& used, LogLevel level) {
  const std::string whose = run_dir_problem();
  if (whose.empty()) return;
  const std::string text = whose + ": " + used + " is used";
  BYPASS_LOG(level, "%s; BYPASS_RUN_DIR names another", text.c_str());
  g_region->why(observe::Reason::kRunDirElsewhere, -1, 0, {}, text.c_str());
}

// Makes the stats region. A process that runs on the kernel's sockets against its user's will has one, too: `bypass
// why` says why.
// False: there is no region in a run directory that the user has named.
bool create_region(const Config& config) {
  if (config.ok() && !config.wants_anything()) return true;
  observe::RegionStart start;
  start.run_dir = run_dir_path(config.run_dir);
  start.library_version = BYPASS_VERSION;
  start.profile = profile_name(config.profile);
  const std::vector<CounterInfo> counters = counter_table();
  start.counters = counters;
  start.settings = settings_text(config);
  std::string problem;
  const LogLevel level = config.asks_for_nothing() ? LogLevel::kInfo : LogLevel::kWarn;
  if (g_region->create(start, problem)) {
    if (config.run_dir.empty()) report_other_run_dir(start.run_dir, level);
    return true;
  }
  if (config.run_dir.empty()) {
    BYPASS_LOG(level, "no statistics for the bypass command: %s", problem.c_str());
    return true;
  }
  const std::string named = config.problem_of("BYPASS_RUN_DIR", problem).message();
  std::string why;
  const int folder = open_run_dir(start.run_dir, true, why);
  const bool is_usable = folder >= 0 && may_write(folder);  // then the directory is not the cause
  if (folder >= 0) close(folder);
  BYPASS_LOG(config.strict ? LogLevel::kError
             : is_usable   ? level
                           : LogLevel::kWarn,
             "%s; no statistics for the bypass command%s", named.c_str(),
             folder < 0 ? ", and no shared memory within the host" : "");
  return false;
}

void report_unbuilt(const Config& config) {
  if (!config.ok()) return;  // every socket is the kernel's, and an address that did not parse cannot be looked at
  const auto is_v6 = [](const Prefix& prefix) { return !prefix.address.is_v4(); };
  const auto asks = [&](const PortConfig& port) {
    return !port.shared && std::any_of(port.addresses.begin(), port.addresses.end(), is_v6);
  };
  if (std::none_of(config.ports.begin(), config.ports.end(), asks)) return;
  const ConfigProblem unbuilt = config.problem_of("BYPASS_ADDR", "IPv6 on the wire is not built yet");
  BYPASS_LOG_WARN("%s; sockets to IPv6 addresses are the kernel's", unbuilt.message().c_str());
}

// Removes the stats file of a process that never started: nothing else knows that it has one. It is among the last
// destructors, so that what is delivered at exit is still counted.
[[gnu::destructor(101)]] void on_unload() {
  if (!g_region_stays) remove_region();
}

}  // namespace

const char* profile_name(Profile profile) {
  return profiles()[static_cast<std::size_t>(profile)].name.data();
}

void keep_environment(const char* const* environment) {
  g_environment.take(environment);
  g_environment.take_program(program_invocation_short_name);
  use_environment(g_environment.entries());
}

const char* const* kept_environment() {
  return g_environment.entries();
}

const Config& configuration() {
  if (g_config != nullptr) return *g_config;
  const Inside inside;
  Config* const config = load();
  open_log(*config);
  g_region = new observe::Region();
  const bool has_region = create_region(*config);
  g_config = config;
  for (const ConfigProblem& problem : config->problems) report_problem(Reason::kConfigProblem, problem.message());
  report_unbuilt(*config);
  if (!config->ok() || !has_region) end_if_strict();
  return *config;
}

observe::Region& region() {
  return *g_region;
}

void renew_region() {
  const Inside inside;
  if (!g_region->active()) (void)create_region(*g_config);
}

void leave_region() {
  g_region_stays = true;
}

void remove_region() {
  if (g_region != nullptr) g_region->remove();
}

void report_problem(Reason reason, const std::string& text, const char* outcome) {
  if (g_config->strict) {
    BYPASS_LOG_ERROR("%s", text.c_str());
  } else if (reason != Reason::kConfigProblem && g_config->asks_for_nothing()) {
    BYPASS_LOG_INFO("%s; %s", text.c_str(), outcome);
  } else {
    BYPASS_LOG_ERROR("%s; %s", text.c_str(), outcome);
  }
  g_region->why(reason, -1, 0, Endpoint{}, text.c_str());
}

void end_if_strict() {
  if (!g_config->strict) return;
  BYPASS_LOG_ERROR("BYPASS_STRICT is on: the program ends with status %d", kStrictStatus);
  remove_region();
  const Inside inside;  // this _exit is not the program's: nothing is delivered first
  _exit(kStrictStatus);
}

}  // namespace bypass::runtime
