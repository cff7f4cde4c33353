// libbypass-toml.so's one symbol.
#include "config/config_toml.h"

extern "C" [[gnu::visibility("default")]] void bypass_read_toml(std::string_view text,
                                                                bypass::runtime::ConfigFile& file) {
  bypass::runtime::read_toml(text, file);
}
