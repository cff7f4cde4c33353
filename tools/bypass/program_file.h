// The file behind a program's name, and whether a library can be preloaded into the program.
#pragma once

#include <string>

namespace bypass::tool {

/// The exit codes of env(1) and the shells for a program that cannot be started.
inline constexpr int kCannotRun = 126, kNotThere = 127;

struct ProgramFile {
  std::string path;     // the file to execute; empty: there is none, or it cannot be executed
  std::string problem;  // … why
  int exit_code = 0;    // … and kCannotRun or kNotThere
};

/// Looks the name up as execvp(3) does, in `search` (PATH).
ProgramFile find_program(const std::string& name, const char* search);

/// Whether the file looks like what LD_PRELOAD takes.
bool is_shared_object(const std::string& path);
/// The name by which other files link to such a library; empty: it has none.
std::string soname_of(const std::string& path);

/// Why the dynamic linker would ignore LD_PRELOAD for the file: a static program, another architecture, or a program
/// that gives itself a user, a group or capabilities. For a script, its interpreter counts. Empty: LD_PRELOAD works.
std::string preload_problem(const std::string& path);

}  // namespace bypass::tool
