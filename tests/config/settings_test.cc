// The table itself: names follow the rule, defaults parse, profiles name settings that exist.
#include "config/settings.h"

#include <gtest/gtest.h>

#include <set>

#include "config/environment.h"
#include "config/settings_text.h"

namespace bypass::runtime {
namespace {

TEST(Settings, Variable_IsTheKeyInCapitals) {
  for (const Setting& setting : settings()) {
    std::string expected = "BYPASS_";
    for (const char c : setting.key) expected += c == '.' ? '_' : static_cast<char>(std::toupper(c));
    EXPECT_EQ(setting.env, expected);
  }
}

TEST(Settings, EveryRow_HasHelpAndAccepted) {
  std::set<std::string_view> keys;
  for (const Setting& setting : settings()) {
    EXPECT_TRUE(keys.insert(setting.key).second) << setting.key;
    EXPECT_FALSE(setting.help.empty()) << setting.key;
    EXPECT_FALSE(accepted_text(setting).empty()) << setting.key;
    EXPECT_NE(setting.apply, nullptr) << setting.key;
    EXPECT_EQ(setting_by_env(setting.env), &setting);
    const bool is_number = setting.type == SettingType::kNumber || setting.type == SettingType::kSize;
    EXPECT_EQ(is_number, !setting.unit.empty()) << setting.key;
  }
  EXPECT_LE(settings().size(), 46U) << "about forty knobs, no more";
}

TEST(Settings, BalancedProfile_StatesTheDefaults) {
  for (const ProfileValue& value : profiles()[0].values)
    EXPECT_EQ(value.value, setting_by_key(value.key)->fallback) << value.key;
}

TEST(Settings, EveryProfile_ParsesAndIsAChoice) {
  const auto words = split(setting_by_key("profile")->accepted, '|');
  ASSERT_EQ(words.size(), profiles().size());
  for (std::size_t i = 0; i < words.size(); i++) {
    EXPECT_EQ(profiles()[i].name, words[i]);
    const std::string variable = "BYPASS_PROFILE=" + std::string(words[i]);
    const Config config = from_environment({variable.c_str()});
    EXPECT_EQ(messages(config), "");
    EXPECT_EQ(static_cast<std::size_t>(config.profile), i);
  }
}

TEST(SettingsText, Nearest_IsSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest("cubik", {"cubic", "newreno"}), "cubic");
  EXPECT_EQ(nearest("CUBIC", {"cubic", "newreno"}), "cubic");
  EXPECT_EQ(nearest("bbr", {"cubic", "newreno"}), "");
}

TEST(SettingsText, Sizes_AndTheirLimits) {
  EXPECT_EQ(parse_size("0"), 0);
  EXPECT_EQ(parse_size("1K"), 1024);
  EXPECT_EQ(parse_size("3m"), 3 << 20);
  EXPECT_EQ(parse_size("7B"), 7);
  EXPECT_EQ(parse_size("1T"), std::int64_t{1} << 40);
  for (const char* bad : {"", "K", "1KK", "1iB", "-5", "1.5M", " 1", "9223372036854775807K"})
    EXPECT_FALSE(parse_size(bad)) << bad;
}

}  // namespace
}  // namespace bypass::runtime
