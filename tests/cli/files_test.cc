// The files of config/ and docs/settings.md are what the settings table says, and each of them loads.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/command.h"
#include "config/config_toml.h"
#include "config/settings.h"

namespace bypass::tool {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = BYPASS_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

runtime::Config load_text(const std::string& text, const std::string& name) {
  runtime::ConfigFile file;
  file.path = name;
  runtime::read_toml(text, file);
  const char* const environment[] = {nullptr};
  runtime::Config config = runtime::parse_config(environment, &file);
  for (const auto& problem : config.problems) ADD_FAILURE() << problem.message();
  return config;
}

TEST(Files, SettingsReference_IsCurrent) {
  EXPECT_EQ(text_of(kSource / "docs/settings.md"), run_command({"config", "--markdown"}).out)
      << "run: bypass config --markdown > docs/settings.md";
}

TEST(Files, ConfigurationFile_IsCurrentAndLoads) {
  const std::string text = text_of(kSource / "config/bypass.toml");
  EXPECT_EQ(text, run_command({"config", "--toml"}).out) << "run: bypass config --toml > config/bypass.toml";
  EXPECT_TRUE(load_text(text, "bypass.toml").ports.empty()) << "as it is, it changes nothing";
}

// Each setting is in the file as `#key = value`, and loads when the # is removed.
TEST(Files, ConfigurationFile_EveryLineLoadsWithoutItsHash) {
  std::stringstream lines(text_of(kSource / "config/bypass.toml"));
  std::string bare;
  std::size_t settings = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool is_setting = line.size() > 1 && line[0] == '#' && line[1] != ' ' && line[1] != '[';
    if (line == "#[[rule]]") break;  // not beside `rules`
    settings += is_setting ? 1 : 0;
    bare += (is_setting ? line.substr(1) : line) + "\n";
  }
  EXPECT_EQ(settings, runtime::settings().size() - 1) << "all but BYPASS_CONFIG";
  const runtime::Config config = load_text(bare, "bypass.toml");
  EXPECT_EQ(config.ports.size(), 1U);
  EXPECT_EQ(config.rules.rules().size(), 2U);
  for (const auto& setting : runtime::settings()) {
    const auto expected = setting.in_file ? runtime::Origin::kFile : runtime::Origin::kDefault;
    EXPECT_EQ(config.values[setting_index(setting)].origin, expected) << setting.key;
  }
}

TEST(Files, Profiles_AreCurrentAndSetWhatTheProfileSets) {
  for (const auto& profile : runtime::profiles()) {
    const std::string name(profile.name);
    const std::string text = text_of(kSource / "config/profiles" / (name + ".toml"));
    EXPECT_EQ(text, run_command({"config", "--profile", name}).out) << "run: bypass config --profile " << name;
    const runtime::Config by_file = load_text(text, name);
    const runtime::Config by_name = load_text("profile = \"" + name + "\"", name);
    for (std::size_t i = 0; i < by_file.values.size(); i++) {
      if (runtime::settings()[i].key == "profile") continue;
      EXPECT_EQ(by_file.values[i].text, by_name.values[i].text) << name << " " << runtime::settings()[i].key;
    }
  }
}

TEST(Files, ExampleRules_Load) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(kSource / "config/rules")) {
    EXPECT_FALSE(load_text(text_of(entry.path()), entry.path().filename()).rules.rules().empty()) << entry.path();
    files++;
  }
  EXPECT_GE(files, 3);
}

}  // namespace
}  // namespace bypass::tool
