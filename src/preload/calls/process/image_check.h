// Whether a program that is about to be executed will run under this library, and may have this process's memory.
#pragma once

#include <string>
#include <vector>

namespace bypass::preload {

struct ImageCheck {
  const char* why_not = nullptr;  // null: it will
  bool fails = false;             // the kernel refuses the exec
};

/// `environment`: the exec's. Where it lacks what the library needs, that is added (missing_variables()). Some system
/// calls.
ImageCheck check_image(const char* file, char* const* environment);

/// What an exec's environment lacks so that the program runs under the library with our settings. A program may be
/// executed with an environment of its own, as nginx does for its upgrade.
std::vector<std::string> missing_variables(char* const* environment);

}  // namespace bypass::preload
