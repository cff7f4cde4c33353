// bypass run: runs a program with libbypass preloaded, and with settings given as options.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>

#include "command.h"
#include "config/config.h"
#include "config/config_toml.h"
#include "config/settings.h"
#include "config/settings_text.h"
#include "library.h"
#include "program_file.h"
#include "start_problems.h"

namespace bypass::tool {
namespace {

namespace fs = std::filesystem;
using runtime::Setting;

constexpr std::string_view kLibrary = "libbypass.so";

struct Given {
  std::string value;
  std::string option;  // as the user wrote it: "--mtu", "--set tcp.retries2"
};

struct RunOptions {
  std::map<std::string, Given> variables;  // by name (BYPASS_NAME)
  std::string library;
  std::vector<std::string> program;
  std::string switch_before;  // "--local", where it stands alone right before the program's name
  bool help = false;
};

/// "tcp.rto_min_us" → "tcp-rto-min-us"
std::string option_name(const Setting& setting) {
  std::string name(setting.key);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '_' || c == '.'; }, '-');
  return name;
}

const Setting* setting_of_option(std::string_view name) {
  for (const Setting& setting : runtime::settings())
    if (option_name(setting) == name) return &setting;
  return nullptr;
}

bool is_switch_value(std::string_view word) {
  static constexpr std::string_view kValues[] = {"on", "off", "1", "0", "true", "false", "yes", "no"};
  return std::find(std::begin(kValues), std::end(kValues), word) != std::end(kValues);
}

/// `mark`: what the user writes in front of the name.
std::string suggestion(std::string_view name, const std::vector<std::string_view>& names, std::string_view mark) {
  const std::string_view near = runtime::nearest(name, names);
  return near.empty() ? "" : fmt::format(" (did you mean {}{}?)", mark, near);
}

std::string nearest_option(std::string_view name) {
  std::vector<std::string> names = {"set", "library", "help"};
  for (const Setting& setting : runtime::settings()) names.push_back(option_name(setting));
  return suggestion(name, {names.begin(), names.end()}, "--");
}

/// The setting nearest to `name`: by its variable's name, or by its key. The variables' common prefix is left out, as
/// it would make every name look near.
std::string nearest_setting(std::string_view name) {
  constexpr std::string_view kPrefix = "BYPASS_";
  const bool by_variable = name.starts_with(kPrefix);
  std::vector<std::string_view> names;
  for (const Setting& setting : runtime::settings()) {
    if (by_variable) {
      names.push_back(setting.env.substr(kPrefix.size()));
    } else if (setting.in_file) {
      names.push_back(setting.key);
    }
  }
  return suggestion(by_variable ? name.substr(kPrefix.size()) : name, names, by_variable ? kPrefix : "");
}

class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}

  /// False: `problem` says what is wrong.
  bool parse(RunOptions& options, std::string& problem) {
    for (; at_ < words_.size() && words_[at_].starts_with('-'); at_++) {
      if (words_[at_] == "--") {
        options.switch_before.clear();
        at_++;
        break;
      }
      if (!take_option(options, problem)) return false;
    }
    options.program.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    if (options.program.empty() && !options.help)
      problem = "which program? bypass run [OPTIONS] [--] PROGRAM [ARGUMENTS]";
    return problem.empty();
  }

 private:
  bool take_option(RunOptions& options, std::string& problem) {
    const std::string& word = words_[at_];
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(word.starts_with("--") ? 2 : 1, equals - (word.starts_with("--") ? 2 : 1));
    if (word == "-h" || word == "--help") return options.help = true;
    const Setting* setting = word.starts_with("--") ? setting_of_option(name) : nullptr;
    if (setting == nullptr && name != "set" && name != "library") {
      problem = fmt::format("there is no option {}{}", word.substr(0, equals), nearest_option(name));
      return false;
    }
    std::string value;
    options.switch_before.clear();
    const bool on_alone = setting != nullptr && setting->type == runtime::SettingType::kSwitch &&
                          (at_ + 1 == words_.size() || !is_switch_value(words_[at_ + 1]));
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (on_alone) {
      value = "on";
      options.switch_before = word;
    } else if (++at_ < words_.size()) {
      value = words_[at_];
    } else {
      problem = fmt::format("{} wants a value", word);
      return false;
    }
    if (setting != nullptr) {
      options.variables[std::string(setting->env)] = {value, "--" + name};
    } else if (name == "library") {
      options.library = value;
    } else {
      return take_assignment(value, options, problem);
    }
    return true;
  }
  /// Takes NAME=VALUE, with the variable's name or the one in the file.
  static bool take_assignment(const std::string& text, RunOptions& options, std::string& problem) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const Setting* setting = runtime::setting_by_env(name);
    if (setting == nullptr) setting = runtime::setting_by_key(name);
    if (equals == std::string::npos || setting == nullptr) {
      problem = equals == std::string::npos
                    ? fmt::format("--set wants NAME=VALUE, not '{}'", text)
                    : fmt::format("there is no setting {}{}; `bypass config` lists them", name, nearest_setting(name));
      return false;
    }
    options.variables[std::string(setting->env)] = {text.substr(equals + 1), "--set " + name};
    return true;
  }

  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
};

std::vector<std::string> environment_for(const RunOptions& options, const std::string& library) {
  std::vector<std::string> environment = own_environment();
  for (const auto& [name, given] : options.variables) set_variable(environment, name, given.value);
  put_before_preloads(environment, library);
  return environment;
}

int fail(int code, const std::string& problem) {
  fmt::print(stderr, "bypass: run: {}\n", problem);
  return code;
}

/// Names what the user wrote: the option, where the value came by one or might have come by one.
std::string told(runtime::ConfigProblem problem, const RunOptions& options) {
  const Setting* const setting = runtime::setting_by_env(problem.name);
  if (setting == nullptr) return problem.message();
  const auto given = options.variables.find(problem.name);
  if (given == options.variables.end() && problem.where != "default") return problem.message();
  problem.name = given != options.variables.end() ? given->second.option : "--" + option_name(*setting);
  problem.where.clear();
  return problem.message();
}

/// For `--local maybe`: the word may well have been meant as the switch's value.
std::string hint_of_value(const RunOptions& options, int code) {
  if (options.switch_before.empty() || code != kNotThere) return "";
  return fmt::format(" (for a value: {}={})", options.switch_before, options.program[0]);
}

void print_help() {
  fmt::print(
      "Runs a program on libbypass: its sockets to bypass addresses leave the kernel.\n"
      "Usage: bypass run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n\n"
      "  bypass run --port vhost:$XDG_RUNTIME_DIR/wire --addr 10.9.0.1/24 -- redis-server --bind 10.9.0.1\n\n"
      "Options, one a setting (docs/settings.md); what is not given comes from the environment and the file:\n");
  for (const Setting& setting : runtime::settings()) {
    const std::string accepted = runtime::accepted_text(setting);
    const std::string_view fallback = setting.fallback;
    fmt::print("  --{:<22} {}\n{:27}{}{}\n", option_name(setting), setting.help, "", accepted,
               fallback.empty() ? "" : fmt::format("; by default {}", fallback));
  }
  fmt::print(
      "  --{:<22} Any setting, by its variable's name or its key in the file.\n"
      "  --{:<22} The library, where it is not found by itself.\n\n"
      "Ends as the program does; with 125 when the settings have problems or name what is not there, 126 when the "
      "program cannot be run on\n"
      "the library (a static one, a setuid one, …), 127 when there is no such program.\n",
      "set NAME=VALUE", "library PATH");
}

}  // namespace

int run_program(const std::vector<std::string>& words) {
  RunOptions options;
  std::string problem;
  if (!Words(words).parse(options, problem)) return fail(kUsage, problem);
  if (options.help) return print_help(), kOk;

  const std::string library = options.library.empty() ? find_library(kLibrary) : fs::absolute(options.library).string();
  if (problem = library_problem(library, kLibrary); !problem.empty()) return fail(kNotStarted, problem);
  std::vector<std::string> environment = environment_for(options, library);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  runtime::Config config = runtime::load_config(environment_pointers.data(), runtime::read_toml);
  if (config.ok()) config.problems = start_problems(config);
  for (const auto& found : config.problems) fail(kNotStarted, told(found, options));
  if (!config.ok()) return fail(kNotStarted, "nothing was started");
  if (!config.wants_port())
    fail(kOk, config.wants_anything()
                  ? "no port is set (--port), so only connections within this host can leave the kernel"
                  : "no port is set (--port), so every socket stays the kernel's");

  const ProgramFile program = find_program(options.program[0], getenv("PATH"));
  if (program.path.empty()) return fail(program.exit_code, program.problem + hint_of_value(options, program.exit_code));
  if (problem = preload_problem(program.path); !problem.empty())
    return fail(kCannotRun, problem + "; libbypass cannot be preloaded into it");
  execve(program.path.c_str(), pointers_to(options.program).data(), environment_pointers.data());
  return fail(errno == ENOENT ? kNotThere : kCannotRun, fmt::format("{}: {}", program.path, std::strerror(errno)));
}

}  // namespace bypass::tool
