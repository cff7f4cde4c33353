// The TOML reader behind config.h's TomlReader. Link it where size does not matter (the bypass command,
// tests); libbypass.so opens it as libbypass-toml.so when there is a file to read (plugin.h).
#pragma once

#include <string_view>

#include "config/config.h"

namespace bypass::runtime {

void read_toml(std::string_view text, ConfigFile& file);

}  // namespace bypass::runtime
