// Chooses each setting's value: environment, else file, else profile, else default. Then parses all of them in one pass
// over the table.
#include "config/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "backends/soft_name.h"
#include "config/config_draft.h"
#include "config/rdma_devices.h"
#include "config/settings.h"
#include "config/settings_text.h"
#include "os/log/environment_copy.h"
#include "os/net/kernel_network.h"

namespace bypass::runtime {
namespace {

constexpr std::string_view kEnvPrefix = "BYPASS_";
constexpr std::string_view kTestPrefix = "BYPASS_TEST_";  // the test suite's own, passed on to what it runs
constexpr const char* kSystemFile = "/etc/bypass.toml";
constexpr off_t kMaxFileBytes = 1 << 20;

std::string did_you_mean(std::string_view near) {
  return near.empty() ? "" : "; did you mean " + std::string(near) + "?";
}

void set_value(Draft& draft, const Setting& setting, std::string_view text, Origin origin, std::string where) {
  draft.values[setting_index(setting)] = {std::string(text), origin, std::move(where)};
}

void set_defaults(Draft& draft) {
  for (const Setting& setting : settings()) {
    draft.values.push_back({std::string(setting.fallback), Origin::kDefault, "default"});
  }
}

void unknown_key(Draft& draft, const FileEntry& entry, const std::string& where) {
  std::vector<std::string_view> keys{"rule"};
  for (const Setting& setting : settings())
    if (setting.in_file) keys.push_back(setting.key);
  draft.problems.push_back({entry.key, entry.value, where,
                            "is no setting" + did_you_mean(nearest(entry.key, keys)) + "; `bypass config` lists them"});
}

// All [[rule]] tables together are the value of "rules".
void add_rule_table(Draft& draft, const FileEntry& entry, const std::string& where) {
  SettingValue& rules = draft.values[setting_index(*setting_by_key("rules"))];
  if (rules.origin == Origin::kFile) {
    rules.text += "; " + entry.value;
  } else {
    rules = {entry.value, Origin::kFile, where};
  }
}

void take_file(Draft& draft, const ConfigFile& file) {
  draft.problems.insert(draft.problems.end(), file.problems.begin(), file.problems.end());
  for (const FileEntry& entry : file.entries) {
    const std::string where = file.path + ":" + std::to_string(entry.line);
    const Setting* const setting = setting_by_key(entry.key);
    if (entry.key == "rule") {
      add_rule_table(draft, entry, where);
    } else if (setting != nullptr && setting->in_file) {
      set_value(draft, *setting, entry.value, Origin::kFile, where);
    } else {
      unknown_key(draft, entry, where);
    }
  }
}

void unknown_variable(Draft& draft, std::string_view name, std::string_view value) {
  // With their common prefix, all names would look similar.
  std::vector<std::string_view> names;
  for (const Setting& setting : settings()) names.push_back(setting.env.substr(kEnvPrefix.size()));
  const std::string_view near = nearest(name.substr(kEnvPrefix.size()), names);
  std::string text = "is no setting";
  if (!near.empty()) text += did_you_mean(std::string(kEnvPrefix) + std::string(near));
  text += "; `bypass config` lists them";
  draft.problems.push_back({std::string(name), std::string(value), "environment", std::move(text)});
}

// An empty variable counts as not set, as in `BYPASS_PORT= command` in a shell.
void take_environment(Draft& draft, const char* const* environment) {
  for (; environment != nullptr && *environment != nullptr; environment++) {
    const std::string_view entry(*environment);
    const std::size_t equals = entry.find('=');
    if (!entry.starts_with(kEnvPrefix) || equals == std::string_view::npos) continue;
    if (entry.starts_with(kTestPrefix)) continue;
    const std::string_view name = entry.substr(0, equals);
    const std::string_view value = entry.substr(equals + 1);
    const Setting* const setting = setting_by_env(name);
    if (setting == nullptr) {
      unknown_variable(draft, name, value);
    } else if (!value.empty()) {
      set_value(draft, *setting, value, Origin::kEnvironment, "environment");
    }
  }
}

// The profile is itself a setting. It fills the settings that nobody set. A bad profile name is reported when it is
// parsed.
void take_profile(Draft& draft) {
  const ProfileInfo* const profile = profile_by_name(draft.values[setting_index(*setting_by_key("profile"))].text);
  if (profile == nullptr) return;
  for (const ProfileValue& value : profile->values) {
    const Setting& setting = *setting_by_key(value.key);
    if (draft.values[setting_index(setting)].origin != Origin::kDefault) continue;
    set_value(draft, setting, value.value, Origin::kProfile, "profile " + std::string(profile->name));
  }
}

void apply_values(Draft& draft) {
  for (const Setting& setting : settings()) {
    const std::string value = draft.values[setting_index(setting)].text;
    if (value.empty()) continue;
    std::string problem;
    if (setting.apply(setting, value, draft, problem)) continue;
    if (problem.find("accepted is") == std::string::npos) problem += "; accepted is " + accepted_text(setting);
    add_problem(draft, setting.env, std::move(problem));
  }
  if (draft.tcp.rto_min > draft.tcp.rto_max)
    add_problem(draft, "BYPASS_TCP_RTO_MIN_US",
                "is longer than the longest timeout; accepted is up to tcp.rto_max_ms, " +
                    std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(draft.tcp.rto_max).count()) +
                    " ms");
}

bool read_whole(int fd, std::string& text) {
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got == 0) return true;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

bool is_null_device(const struct stat& status) {
  return S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3);
}

constexpr int kNoRegularFile = -1;

// Returns 0, an errno or kNoRegularFile. A device or a pipe as configuration file could block for ever, so it is
// refused; /dev/null counts as an empty file.
int read_file(const char* path, std::string& text) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return errno;
  struct stat status {};
  int error = 0;
  if (fstat(fd, &status) != 0) {
    error = errno;
  } else if (is_null_device(status)) {
    error = 0;
  } else if (!S_ISREG(status.st_mode)) {
    error = kNoRegularFile;
  } else if (status.st_size > kMaxFileBytes) {
    error = EFBIG;
  } else if (!read_whole(fd, text)) {
    error = errno;
  }
  close(fd);
  return error;
}

void file_problem(ConfigFile& file, bool named, int error) {
  const std::string why =
      error == kNoRegularFile ? "is no regular file" : std::string("cannot be read: ") + strerrordesc_np(error);
  file.problems.push_back({named ? "BYPASS_CONFIG" : "configuration file", file.path, named ? "environment" : "default",
                           why + "; accepted is the path of a TOML file"});
}

}  // namespace

bool Config::asks_for_nothing() const {
  const SettingValue& shared_memory = values[setting_index(*setting_by_key("local"))];
  return ok() && ports.empty() && shared_memory.origin == Origin::kDefault;
}

const char* origin_name(Origin origin) {
  static constexpr const char* kNames[] = {"default", "profile", "file", "environment"};
  return kNames[static_cast<std::size_t>(origin)];
}

ConfigProblem Config::problem_of(std::string_view variable, std::string text) const {
  const SettingValue& value = values[setting_index(*setting_by_env(variable))];
  return {std::string(variable), value.text, value.where, std::move(text)};
}

std::string ConfigProblem::message() const {
  std::string out = name;
  if (!value.empty()) out += "=" + value;
  if (!where.empty() && where != "default") out += " (" + where + ")";
  return out + ": " + text;
}

void add_problem(Draft& draft, std::string_view env, std::string text) {
  const Setting& setting = *setting_by_env(env);
  const SettingValue& value = draft.values[setting_index(setting)];
  const std::string_view name = value.origin == Origin::kFile ? setting.key : setting.env;
  draft.problems.push_back({std::string(name), value.text, value.where, std::move(text)});
}

Config parse_config(const char* const* environment, const ConfigFile* file) {
  Draft draft;
  set_defaults(draft);
  if (file != nullptr) take_file(draft, *file);
  take_environment(draft, environment);
  take_profile(draft);
  apply_values(draft);
  join_ports(draft);
  return std::move(static_cast<Config&>(draft));
}

bool has_system_file() {
  return access(kSystemFile, R_OK) == 0;
}

Config load_config(const char* const* environment, TomlReader reader) {
  const char* const named = find_variable(environment, "BYPASS_CONFIG");
  const bool is_named = named != nullptr && *named != 0;
  ConfigFile file;
  file.path = is_named ? named : kSystemFile;
  std::string text;
  const int error = read_file(file.path.c_str(), text);
  const bool absent = error == ENOENT && !is_named;
  if (error == 0) {
    reader(text, file);
  } else if (!absent) {
    file_problem(file, is_named, error);
  }
  Config config = parse_config(environment, absent ? nullptr : &file);
  if (asks_the_kernel(config)) complete_from_kernel(config, read_kernel_network(), kRdmaDevices);
  return config;
}

bool Config::wants_links(const PortConfig& port) const {
  if (rdma == RdmaMode::kDevice) return true;
  return rdma == RdmaMode::kAuto && port.kind == "verbs" && !soft_index(port.target).has_value();
}

}  // namespace bypass::runtime
