// Plugins: shared objects libbypass-NAME.so that a process opens only when it needs them. They lie beside
// libbypass.so, in its folder `bypass`, or where `cmake --install` put them.
//
// The calling thread must be marked inside: the loader opens and maps files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "config/config.h"

namespace bypass::runtime {

/// The path of the plugin; empty: `problem` says where it was looked for.
std::string find_plugin(std::string_view name, std::string& problem);
/// The cheap check: the file is there.
bool plugin_present(std::string_view name, std::string& problem);

/// The path of a file of this build (`libbypass-softverbs.so`); false: it is in none of the folders, or longer than
/// `size`. For Host.
bool file_of_build(const char* name, char* path, std::size_t size);

/// Opens the plugin and asks it for its backend. Null: `problem` is a complete text.
Backend* open_plugin(std::string_view name, const Host& host, std::string& problem);

/// A fresh copy of the plugin, with static data of its own, beside the one that is loaded already: a forked
/// child that takes over a port cannot use the DPDK that it inherited.
Backend* open_plugin_copy(std::string_view name, const Host& host, std::string& problem);

/// The two above for a file by its path.
Backend* open_plugin_file(const std::string& path, const Host& host, std::string& problem);
Backend* open_plugin_file_copy(const std::string& path, const Host& host, std::string& problem);

/// The plugins of a process, each opened once. What a forked child asks for after drop_in_child() are fresh copies.
class PluginSet {
 public:
  /// `inherited`: a parent has used plugins that this set knows nothing of.
  explicit PluginSet(bool inherited = false) : inherited_(inherited) {}
  /// Null: `problem` is a complete text.
  Backend* get(std::string_view name, const Host& host, std::string& problem);
  /// A forked child's first act: async-signal-safe, drops the inherited wire descriptors.
  void drop_in_child();

 private:
  std::vector<std::pair<std::string, Backend*>> opened_;
  bool inherited_;  // a parent has used the plugins that are loaded
};

/// A function of a plugin that is no backend; null: `problem` says why.
void* plugin_function(std::string_view name, const char* function, std::string& problem);

/// load_config's reader: opens libbypass-toml.so when there is a text to read; that it is missing is then a
/// problem of the file.
TomlReader toml_reader();

}  // namespace bypass::runtime
