// How a setting's text becomes a field of Config: the functions that the settings table names, one for each kind of
// value. `path` is a chain of member pointers into Config. Only settings.cc uses them.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <type_traits>

#include "config/config_draft.h"
#include "config/settings.h"
#include "config/settings_text.h"

namespace bypass::runtime::apply {

template <auto... path>
auto& field(Draft& draft) {
  return (static_cast<Config&>(draft).*....*path);
}

inline bool range_problem(std::string& problem) {
  problem = "is out of range";
  return false;
}

// True also for a number that 64 bits cannot hold, and for a size below zero.
inline bool is_whole_number(const Setting& setting, std::string_view value) {
  if (value.starts_with('-')) value.remove_prefix(1);
  const std::size_t digits = std::min(value.find_first_not_of("0123456789"), value.size());
  if (digits == 0) return false;
  const std::string unit = "0" + std::string(value.substr(digits));
  return (setting.type == SettingType::kSize ? parse_size(unit) : parse_number(unit)).has_value();
}

inline bool parse_in_range(const Setting& setting, std::string_view value, std::int64_t& number, std::string& problem) {
  const auto parsed = setting.type == SettingType::kSize ? parse_size(value) : parse_number(value);
  if (!parsed) {
    problem = is_whole_number(setting, value) ? "is out of range" : "is no whole number";
    return false;
  }
  number = *parsed;
  return (number >= setting.min && number <= setting.max) || range_problem(problem);
}

template <typename Unit, auto... path>
bool duration(const Setting& setting, std::string_view value, Draft& draft, std::string& problem) {
  if (!setting.word.empty() && value == setting.word) {
    field<path...>(draft) = kForever;
    return true;
  }
  std::int64_t number = 0;
  if (!parse_in_range(setting, value, number, problem)) return false;
  field<path...>(draft) = Unit(number);
  return true;
}

template <auto... path>
bool number(const Setting& setting, std::string_view value, Draft& draft, std::string& problem) {
  std::int64_t parsed = 0;
  if (!parse_in_range(setting, value, parsed, problem)) return false;
  auto& target = field<path...>(draft);
  target = static_cast<std::remove_reference_t<decltype(target)>>(parsed);
  return true;
}

template <auto... path>
bool on_off(const Setting& /*setting*/, std::string_view value, Draft& draft, std::string& problem) {
  static constexpr std::string_view kOn[] = {"on", "1", "true", "yes"};
  static constexpr std::string_view kOff[] = {"off", "0", "false", "no"};
  const bool on = std::find(std::begin(kOn), std::end(kOn), value) != std::end(kOn);
  if (!on && std::find(std::begin(kOff), std::end(kOff), value) == std::end(kOff)) {
    problem = "is neither on nor off";
    return false;
  }
  field<path...>(draft) = on;
  return true;
}

// The enumerators lie in the order of the accepted words.
template <auto... path>
bool choice(const Setting& setting, std::string_view value, Draft& draft, std::string& problem) {
  const auto words = split(setting.accepted, '|');
  const auto at = std::find(words.begin(), words.end(), value);
  if (at == words.end()) {
    problem = "is not one of them";
    if (const auto near = nearest(value, words); !near.empty())
      problem += " (did you mean '" + std::string(near) + "'?)";
    return false;
  }
  auto& target = field<path...>(draft);
  target = static_cast<std::remove_reference_t<decltype(target)>>(at - words.begin());
  return true;
}

template <auto... path>
bool text(const Setting& /*setting*/, std::string_view value, Draft& draft, std::string& /*problem*/) {
  field<path...>(draft) = value;
  return true;
}

// The path must be absolute: a process may change its directory, and other processes have another one.
template <auto... path>
bool absolute_path(const Setting& /*setting*/, std::string_view value, Draft& draft, std::string& problem) {
  if (!value.starts_with('/')) {
    problem = "is no absolute path";
    return false;
  }
  field<path...>(draft) = value;
  return true;
}

template <auto parse, auto member>
bool list(const Setting& /*setting*/, std::string_view value, Draft& draft, std::string& problem) {
  return parse(value, draft.*member, problem);
}

inline bool rules(const Setting& /*setting*/, std::string_view value, Draft& draft, std::string& problem) {
  return draft.rules.add(value, problem);
}

inline bool rdma(const Setting& /*setting*/, std::string_view value, Draft& draft, std::string& problem) {
  constexpr std::string_view kSwitches[] = {"on", "1", "true", "yes", "0", "false", "no"};
  if (std::find(std::begin(kSwitches), std::end(kSwitches), value) != std::end(kSwitches)) {
    problem = "is no device's name";
    return false;
  }
  draft.rdma = value == "auto" ? RdmaMode::kAuto : value == "off" ? RdmaMode::kOff : RdmaMode::kDevice;
  if (draft.rdma == RdmaMode::kDevice) draft.rdma_device = value;
  return true;
}

}  // namespace bypass::runtime::apply
