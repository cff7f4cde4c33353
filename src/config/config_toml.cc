// Turns TOML text into entries, by toml++. This file alone is libbypass-toml.so (and a part of the bypass command).
// toml++ needs the C++ locale, about 600 KB that a program without a configuration file shall not load.
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include "config/config_toml.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "config/settings_text.h"

namespace bypass::runtime {
namespace {

int line_of(const toml::node& node) {
  return static_cast<int>(node.source().begin.line);
}

void problem(ConfigFile& file, std::string name, std::string value, int line, std::string text) {
  file.problems.push_back({std::move(name), std::move(value), file.path + ":" + std::to_string(line), std::move(text)});
}

// 1.5, 1.0, 1e+20: no setting takes a decimal number; the problem shows what was written.
std::string decimal_text(double value) {
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  std::string text(digits.data(), end);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// A value as the environment would have it. False: no setting takes such a value.
bool scalar_text(const toml::node& node, std::string& out) {
  if (const auto* text = node.as_string()) {
    out = text->get();
  } else if (const auto* number = node.as_integer()) {
    out = std::to_string(number->get());
  } else if (const auto* on = node.as_boolean()) {
    out = on->get() ? "on" : "off";
  } else {
    return false;
  }
  return true;
}

// A list has one entry for each port, like the parts between `;` in a variable.
bool value_text(const toml::node& node, std::string& out) {
  const auto* const list = node.as_array();
  if (list == nullptr) return scalar_text(node, out);
  for (std::size_t i = 0; i < list->size(); i++) {
    std::string part;
    if (!scalar_text(*list->get(i), part)) return false;
    if (i > 0) out += ";";
    out += part;
  }
  return true;
}

constexpr std::string_view kRuleKeys[] = {"action", "proto", "role", "address", "port", "program"};

// Checks one [[rule]]'s keys and fills `fields` in the order of kRuleKeys.
bool read_rule_fields(const toml::table& rule, ConfigFile& file, std::string (&fields)[std::size(kRuleKeys)]) {
  bool good = true;
  for (const auto& [key, node] : rule) {
    const auto at = std::find(std::begin(kRuleKeys), std::end(kRuleKeys), key.str());
    std::string text;
    if (at == std::end(kRuleKeys)) {
      const auto near = nearest(key.str(), {std::begin(kRuleKeys), std::end(kRuleKeys)});
      problem(file, "rule." + std::string(key.str()), "", line_of(node),
              "is no part of a rule" + (near.empty() ? "" : "; did you mean " + std::string(near) + "?") +
                  "; accepted are action, proto, role, address, port and program");
      good = false;
    } else if (!scalar_text(node, text)) {
      problem(file, "rule." + std::string(key.str()), "", line_of(node), "must be a string or a whole number");
      good = false;
    } else if (text.empty() && at != std::begin(kRuleKeys)) {
      problem(file, "rule." + std::string(key.str()), "", line_of(node),
              "is empty; accepted is to leave the key out, which means any");
      good = false;
    } else {
      fields[at - std::begin(kRuleKeys)] = text;
    }
  }
  if (good && fields[0].empty()) {
    problem(file, "rule", "", line_of(rule), "has no action; accepted is bypass, kernel, fail or rdma");
    good = false;
  }
  return good;
}

// Writes a [[rule]] in the syntax of BYPASS_RULES.
void read_rule(const toml::table& rule, ConfigFile& file) {
  std::string fields[std::size(kRuleKeys)];
  if (!read_rule_fields(rule, file, fields)) return;
  const auto& [action, proto, role, address, port, program] = fields;
  std::string text = action + " " + (proto.empty() ? "*" : proto) + " " + (role.empty() ? "*" : role) + " ";
  const bool bare_v6 = !port.empty() && address.find(':') != std::string::npos && !address.starts_with('[');
  text += address.empty() ? "*" : bare_v6 ? "[" + address + "]" : address;
  if (!port.empty()) text += ":" + port;
  if (!program.empty()) text += " program=" + program;
  file.entries.push_back({"rule", text, line_of(rule)});
}

void read_rules(const toml::node& node, ConfigFile& file) {
  const auto* const rules = node.as_array();
  if (rules == nullptr || !rules->is_array_of_tables()) {
    problem(file, "rule", "", line_of(node), "must be written as [[rule]] tables");
    return;
  }
  for (const auto& rule : *rules) read_rule(*rule.as_table(), file);
}

void read_table(const toml::table& table, const std::string& prefix, ConfigFile& file) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    std::string text;
    if (name == "rule") {
      read_rules(node, file);
    } else if (const auto* inner = node.as_table()) {
      read_table(*inner, name + ".", file);
    } else if (const auto* decimal = node.as_floating_point()) {
      file.entries.push_back({name, decimal_text(decimal->get()), line_of(node)});
    } else if (value_text(node, text)) {
      file.entries.push_back({name, text, line_of(node)});
    } else {
      problem(file, name, "", line_of(node), "must be a string, a whole number, true, false or a list of these");
    }
  }
}

}  // namespace

void read_toml(std::string_view text, ConfigFile& file) {
  const toml::parse_result result = toml::parse(text, file.path);
  if (!result) {
    const auto& error = result.error();
    problem(file, "configuration file", "", static_cast<int>(error.source().begin.line),
            "is no TOML: " + std::string(error.description()));
    return;
  }
  const auto* both = result.table().get("rules");
  if (both != nullptr && result.table().contains("rule"))
    problem(file, "rules", "", line_of(*both), "stands beside [[rule]] tables; accepted is one of the two forms");
  read_table(result.table(), "", file);
}

}  // namespace bypass::runtime
