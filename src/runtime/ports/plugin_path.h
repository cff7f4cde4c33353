// The file from which this code was loaded. Private to the plugin loader.
#pragma once

#include <string>
#include <vector>

namespace bypass::runtime {

/// The absolute path of the file from which `address` is mapped; empty: from no file. It is read from /proc/self/maps:
/// the dynamic linker only remembers what LD_PRELOAD said, which may be relative to a folder that the program has left.
std::string file_of_address(const void* address);

/// Folders that may hold plugins, best first: the library's own, bypass/ in it, and the install prefix's. If this code
/// is linked into a program in the build's folder of programs, the build's folder, too.
std::vector<std::string> plugin_folders();

/// Why the plugin's file must not be loaded: text that says who owns it. Empty: the file belongs to root, to this user
/// or to the owner of the library, and nobody else may write to it. In a folder such as /tmp anybody may put a file
/// beside the library.
std::string plugin_problem(const std::string& path);

}  // namespace bypass::runtime
