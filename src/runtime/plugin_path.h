// Where this code was loaded from. Private to the plugin loader.
#pragma once

#include <string>
#include <vector>

namespace bypass::runtime {

/// The absolute path of the file that `address` is mapped from; empty when it is none. Read from
/// /proc/self/maps: what the dynamic linker remembers is what LD_PRELOAD said, perhaps relative to a folder
/// that the program has left.
std::string file_of_address(const void* address);

/// Folders that may hold plugins, best first: the library's own, bypass/ in it, and the install prefix's. Of a program
/// that has this code linked into it and lies in the build's folder of programs, the build's, too.
std::vector<std::string> plugin_folders();

/// Empty: the file is root's, this user's or its who has the library, and nobody else may write it: in a folder such as
/// /tmp anybody may put a file beside the library. Otherwise whose it is.
std::string plugin_problem(const std::string& path);

}  // namespace bypass::runtime
