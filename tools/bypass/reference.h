// Texts made from the settings table alone, whatever the environment: docs/settings.md, config/bypass.toml and
// config/profiles. Tests compare the files with them.
#pragma once

#include <string>

#include "config/settings.h"

namespace bypass::tool {

std::string settings_markdown();
std::string settings_toml();
std::string profile_toml(const runtime::ProfileInfo& profile);

}  // namespace bypass::tool
