// The settings table: the one place that defines a setting. Environment, file, help, docs/settings.md, `bypass config`,
// validation and error texts are all made from it.
//
// A setting's variable is BYPASS_ and its key in capitals, with dots as underscores (a test checks this).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace bypass::runtime {

struct Draft;  // a Config under construction, config_draft.h

enum class SettingType : std::uint8_t { kText, kSwitch, kNumber, kSize, kChoice };
const char* type_name(SettingType type);

struct Setting {
  std::string_view key;  // in the file, dotted: "tcp.rto_min_us"
  std::string_view env;  // "BYPASS_TCP_RTO_MIN_US"
  SettingType type = SettingType::kText;
  std::string_view unit = {};  // of a number: "µs", "ms", "segments"
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::string_view fallback = {};  // the default, as text; empty is "not set"
  std::string_view accepted = {};  // a choice's words separated by |; a text's form
  std::string_view word = {};      // a word that a number accepts besides: "forever"
  std::string_view example = {};   // shown if there is no default
  bool in_file = true;
  bool built = true;  // false: accepted, but has no effect yet
  std::string_view help = {};
  /// Parses `value` into the draft; false: `problem` says what is wrong (not what is accepted).
  bool (*apply)(const Setting&, std::string_view value, Draft&, std::string& problem) = nullptr;
};

std::span<const Setting> settings();

const Setting* setting_by_env(std::string_view env);
const Setting* setting_by_key(std::string_view key);
std::size_t setting_index(const Setting& setting);

/// "a whole number from 1000 to 60000000 (µs)", "one of cubic, newreno", …
std::string accepted_text(const Setting& setting);

/// A profile is a named set of settings, nothing else.
struct ProfileValue {
  std::string_view key;
  std::string_view value;
};
struct ProfileInfo {
  std::string_view name;
  std::string_view help;
  std::span<const ProfileValue> values;
};
/// In the order of enum Profile.
std::span<const ProfileInfo> profiles();
const ProfileInfo* profile_by_name(std::string_view name);

}  // namespace bypass::runtime
