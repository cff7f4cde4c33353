// What a setting accepts, in words: for error messages and the documentation.
#include "config/settings.h"

namespace bypass::runtime {

const char* type_name(SettingType type) {
  static constexpr const char* kNames[] = {"text", "switch", "number", "size", "choice"};
  return kNames[static_cast<std::size_t>(type)];
}

namespace {

std::string size_text(std::int64_t bytes) {
  constexpr std::string_view kUnits = "KMGT";
  std::string unit;
  for (std::size_t i = 0; bytes >= 1024 && bytes % 1024 == 0; i++, bytes /= 1024) unit = kUnits[i];
  return std::to_string(bytes) + unit;
}

}  // namespace

std::string accepted_text(const Setting& setting) {
  switch (setting.type) {
    case SettingType::kText:
      return std::string(setting.accepted);
    case SettingType::kSwitch:
      return "on or off";
    case SettingType::kChoice: {
      std::string out = "one of ";
      for (const char c : setting.accepted) c == '|' ? out += ", " : out += c;
      return out;
    }
    case SettingType::kNumber:
    case SettingType::kSize:
      break;
  }
  const bool size = setting.type == SettingType::kSize;
  const auto shown = [size](std::int64_t number) { return size ? size_text(number) : std::to_string(number); };
  std::string out = size ? "a number of bytes, with K, M, G or T if you like," : "a whole number";
  out += " from " + shown(setting.min) + " to " + shown(setting.max);
  if (!size) out += " (" + std::string(setting.unit) + ")";
  if (!setting.word.empty()) out += " or " + std::string(setting.word);
  return out;
}

}  // namespace bypass::runtime
