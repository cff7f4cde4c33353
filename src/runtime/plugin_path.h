// Where this code was loaded from. Private to the plugin loader.
#pragma once

#include <string>
#include <vector>

namespace bypass::runtime {

/// The absolute path of the file that `address` is mapped from; empty when it is none. Read from
/// /proc/self/maps: what the dynamic linker remembers is what LD_PRELOAD said, perhaps relative to a folder
/// that the program has left.
std::string file_of_address(const void* address);

/// Folders that may hold plugins, best first.
std::vector<std::string> plugin_folders();

}  // namespace bypass::runtime
