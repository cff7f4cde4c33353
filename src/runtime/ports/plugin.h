// Plugins: shared objects libbypass-NAME.so that a process opens only when it needs them. They are beside libbypass.so,
// in its folder `bypass`, or where `cmake --install` has put them.
//
// The calling thread must be marked as inside (own_work.h), as the loader opens and maps files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "config/config.h"

namespace bypass::runtime {

/// The path of the plugin; empty: `problem` says where it was searched.
std::string find_plugin(std::string_view name, std::string& problem);
/// The cheap check: whether the file exists.
bool plugin_present(std::string_view name, std::string& problem);

/// For Host: the path of a file of this build (`libbypass-softverbs.so`). False: no folder has it, or the path is
/// longer than `size`.
bool file_of_build(const char* name, char* path, std::size_t size);

/// Opens the plugin and gets its backend. Null: `problem` is a complete text.
Backend* open_plugin(std::string_view name, const Host& host, std::string& problem);

/// Opens a new copy of the plugin, with static data of its own, beside the loaded one: a forked child that takes over a
/// port cannot use the DPDK that it inherited.
Backend* open_plugin_copy(std::string_view name, const Host& host, std::string& problem);

/// The same two functions for a file given by its path.
Backend* open_plugin_file(const std::string& path, const Host& host, std::string& problem);
Backend* open_plugin_file_copy(const std::string& path, const Host& host, std::string& problem);

/// The plugins of a process, each opened once. After drop_in_child() a forked child gets new copies.
class PluginSet {
 public:
  /// `inherited`: a parent has used plugins that this set does not know.
  explicit PluginSet(bool inherited = false) : inherited_(inherited) {}
  /// Null: `problem` is a complete text.
  Backend* get(std::string_view name, const Host& host, std::string& problem);
  /// To be called first in a forked child: async-signal-safe, closes the inherited wire descriptors.
  void drop_in_child();
  /// See Backend::protect_descriptors().
  void protect_descriptors(bool on);

 private:
  std::vector<std::pair<std::string, Backend*>> opened_;
  bool inherited_;  // a parent has used the loaded plugins
};

/// A function of a plugin that is not a backend; null: `problem` says why.
void* plugin_function(std::string_view name, const char* function, std::string& problem);

/// The reader for load_config(): opens libbypass-toml.so if there is a text to read. A missing library is then a
/// problem of the file.
TomlReader toml_reader();

}  // namespace bypass::runtime
