// The file behind a program's name, and whether a library can be preloaded into what it starts.
#pragma once

#include <string>

namespace bypass::tool {

struct ProgramFile {
  std::string path;     // to be executed; empty: there is none, or it cannot be executed
  std::string problem;  // … why
  int exit_code = 0;    // … and how env(1) and the shells end then: 126 or 127
};

/// Looks it up as execvp(3) does, in `search` (PATH).
ProgramFile find_program(const std::string& name, const char* search);

/// Whether it looks like what LD_PRELOAD takes.
bool is_shared_object(const std::string& path);
/// What such a library is called by those that are linked to it; empty: nothing.
std::string soname_of(const std::string& path);

/// Why the dynamic linker would not take LD_PRELOAD for it: a static program, another architecture, one that gives
/// itself a user, a group or capabilities. A script's interpreter stands for it. Empty: it would.
std::string preload_problem(const std::string& path);

}  // namespace bypass::tool
