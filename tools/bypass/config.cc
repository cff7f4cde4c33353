// bypass config: the configuration as a program started from this shell would have it, or as a running one has it.
#include <fmt/format.h>
#include <unistd.h>

#include "backends/pci_answers.h"
#include "backends/pci_card.h"
#include "command.h"
#include "config/config_toml.h"
#include "config/port_check.h"
#include "config/settings.h"
#include "describe.h"
#include "reference.h"
#include "start_problems.h"

namespace bypass::tool {
namespace {

using runtime::Config;
using runtime::Setting;

bool is_number(const Setting& setting) {
  return setting.type == runtime::SettingType::kNumber;
}

std::string shown_value(const Setting& setting, const runtime::SettingValue& value) {
  if (value.text.empty()) return "-";
  return is_number(setting) && value.text != setting.word ? fmt::format("{} {}", value.text, setting.unit) : value.text;
}

// The note for a setting that is accepted and has no effect yet.
std::string not_built(const Setting& setting) {
  return setting.built ? "" : "not built yet";
}

Json setting_json(const Setting& setting, const runtime::SettingValue& value) {
  Json json = {{"key", setting.key},
               {"variable", setting.env},
               {"type", runtime::type_name(setting.type)},
               {"unit", setting.unit},
               {"value", value.text},
               {"default", setting.fallback},
               {"origin", runtime::origin_name(value.origin)},
               {"where", value.where},
               {"built", not_built(setting).empty()},
               {"accepted", runtime::accepted_text(setting)},
               {"help", setting.help}};
  return json;
}

void print_text(const Config& config) {
  std::vector<std::vector<std::string>> rows = {{"SETTING", "VALUE", "FROM", ""}};
  for (const Setting& setting : runtime::settings()) {
    const auto& value = config.values[runtime::setting_index(setting)];
    const std::string from = value.origin == runtime::Origin::kEnvironment ? std::string(setting.env) : value.where;
    rows.push_back({std::string(setting.key), shown_value(setting, value), from, not_built(setting)});
  }
  print_table(rows, "");
}

struct PortPlan {
  std::string port;
  CardPlan card;
};

/// For ports on cards. It also asks whether this user may have the card now, which is too much for `bypass run`.
std::vector<PortPlan> port_plans(const Config& config) {
  std::vector<PortPlan> plans;
  for (const runtime::PortConfig& port : config.ports) {
    const auto address = runtime::card_of(port);
    if (!address) continue;
    const PciCard card = read_pci_card(*address);
    const std::uint64_t bytes = dpdk_bytes(config.port_memory, config.ports.size());
    const PagePlan pages = page_plan(card, bytes, config.hugepages != Hugepages::kOff, may_see_physical_addresses());
    bool busy = false;
    std::string further = lock_problem(card, bytes, lock_limit_of_process());
    if (further.empty()) further = access_problem(card, busy);
    if (further.empty()) further = pages.problem;
    CardPlan plan = card_plan(card, further);
    if (card.is_there) plan.insert(plan.end() - 1, {"memory", pages.text});
    plans.push_back({runtime::port_text(port), std::move(plan)});
  }
  return plans;
}

void print_plans(const Config& config) {
  for (const PortPlan& plan : port_plans(config)) {
    fmt::print("\n{}\n", plan.port);
    std::vector<std::vector<std::string>> rows;
    for (const auto& [word, text] : plan.card) rows.push_back({word, text});
    print_table(rows, "  ");
  }
}

void print_as_json(const Config& config) {
  Json settings = Json::array();
  for (const Setting& setting : runtime::settings())
    settings.push_back(setting_json(setting, config.values[runtime::setting_index(setting)]));
  Json problems = Json::array();
  for (const auto& problem : config.problems)
    problems.push_back({{"name", problem.name},
                        {"value", problem.value},
                        {"where", problem.where},
                        {"text", problem.text},
                        {"message", problem.message()}});
  Json plans = Json::array();
  for (const PortPlan& plan : port_plans(config)) {
    plans.push_back({{"port", plan.port}});
    for (const auto& [word, text] : plan.card) plans.back()[word] = text;
  }
  print_json(Json{{"settings", settings}, {"plans", plans}, {"problems", problems}});
}

/// `right`: the configuration itself is right, but names something that does not exist.
void print_problems(const Config& config, bool right) {
  if (config.ok()) return;
  std::fflush(stdout);
  fmt::print(stderr, "\n");
  for (const auto& problem : config.problems) fmt::print(stderr, "bypass: {}\n", problem.message());
  fmt::print(stderr, "bypass: with {} programs {}\n", config.problems.size() == 1 ? "this problem" : "these problems",
             config.strict ? "end with status 78 (strict)"
             : right       ? "go without what is named, and say so with their first internet socket"
                           : "stay on the kernel's sockets");
}

int print_profile(const std::string& name) {
  const auto* const profile = runtime::profile_by_name(name);
  if (profile == nullptr) {
    fmt::print(stderr, "bypass: there is no profile '{}': accepted is {}\n", name,
               runtime::accepted_text(*runtime::setting_by_key("profile")));
    return kUsage;
  }
  fmt::print("{}", profile_toml(*profile));
  return kOk;
}

runtime::Origin origin_of(const std::string& where) {
  if (where == "environment") return runtime::Origin::kEnvironment;
  return where.starts_with("profile ") ? runtime::Origin::kProfile : runtime::Origin::kFile;
}

/// The configuration that the process has left in its stats file. Its environment may have been overwritten since
/// (setproctitle). `bypass why` tells what is wrong with it.
Config config_of(const observe::Snapshot& process) {
  std::vector<std::string> variables;
  for (const auto& entry : process.settings)
    if (const Setting* setting = runtime::setting_by_key(entry.key); setting != nullptr)
      variables.push_back(fmt::format("{}={}", setting->env, entry.value));
  std::vector<const char*> environment;
  for (const std::string& variable : variables) environment.push_back(variable.c_str());
  environment.push_back(nullptr);
  Config config = runtime::parse_config(environment.data(), nullptr);
  config.problems.clear();
  for (const auto& entry : process.settings)
    if (const Setting* setting = runtime::setting_by_key(entry.key); setting != nullptr)
      config.values[runtime::setting_index(*setting)] = {entry.value, origin_of(entry.where), entry.where};
  return config;
}

int show_process(const ConfigOptions& options) {
  const observe::Listing listing = find_processes(options.pid);
  if (listing.processes.empty()) return kNothing;
  const Config config = config_of(listing.processes.front());
  options.json ? print_as_json(config) : print_text(config);
  return kOk;
}

}  // namespace

int run_config(const ConfigOptions& options) {
  if (options.pid != 0 && (options.markdown || options.toml || !options.profile.empty())) {
    fmt::print(stderr, "bypass: config: a process has neither a reference nor a profile to print\n");
    return kUsage;
  }
  if (options.pid != 0) return show_process(options);
  if (!options.profile.empty()) return print_profile(options.profile);
  if (options.markdown || options.toml) {
    fmt::print("{}", options.markdown ? settings_markdown() : settings_toml());
    return kOk;
  }
  Config config = runtime::load_config(environ, runtime::read_toml);
  const bool right = config.ok();
  if (right) config.problems = start_problems(config);
  if (options.json) {
    print_as_json(config);
  } else {
    print_text(config);
    print_plans(config);
    print_problems(config, right);
  }
  return config.ok() ? kOk : kNothing;
}

}  // namespace bypass::tool
