// A library of ours that a program is to preload, and the environment that the program gets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bypass::tool {

/// Looks beside the command, where the build leaves the library, then where the installation puts it. Empty: not found.
std::string find_library(std::string_view name);
/// Why `library` cannot be preloaded as the one of that name; empty: it can.
std::string library_problem(const std::string& library, std::string_view name);

std::vector<std::string> own_environment();
void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value);
/// LD_PRELOAD has `library` first, and then what it has in `environment`.
void put_before_preloads(std::vector<std::string>& environment, const std::string& library);
/// For execve(2).
std::vector<char*> pointers_to(std::vector<std::string>& strings);

}  // namespace bypass::tool
