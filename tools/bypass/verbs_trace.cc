// bypass verbs-trace: runs a program, and shows each verb that it calls.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "library.h"
#include "program_file.h"
#include "verbs_trace/variables.h"

namespace bypass::tool {
namespace {

constexpr std::string_view kTrace = "libbypass-verbs-trace.so", kDevices = "libbypass-softverbs.so";

struct TraceOptions {
  std::string form = "text", file;
  std::vector<std::string> program;
  bool help = false;
};

int trace_fails(int code, const std::string& problem) {
  fmt::print(stderr, "bypass: verbs-trace: {}\n", problem);
  return code;
}

/// Empty: the words are taken.
std::string parse_trace(const std::vector<std::string>& words, TraceOptions& options) {
  std::size_t at = 0;
  for (; at < words.size() && words[at].starts_with('-'); at++) {
    const std::string& word = words[at];
    if (word == "--") {
      at++;
      break;
    }
    if (word == "-h" || word == "--help") {
      options.help = true;
      return "";
    }
    if (word == "--json" || word == "--summary") {
      if (options.form != "text") return "--json and --summary are two forms; accepted is one of them";
      options.form = word.substr(2);
    } else if (word == "-o" || word == "--output") {
      if (++at == words.size()) return fmt::format("{} wants a file", word);
      options.file = std::filesystem::absolute(words[at]);
    } else {
      return fmt::format("there is no option {}; accepted are --json, --summary, -o FILE and --help", word);
    }
  }
  options.program.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  return options.program.empty() ? "which program? bypass verbs-trace [OPTIONS] [--] PROGRAM [ARGUMENTS]" : "";
}

void print_trace_help() {
  fmt::print(
      "Shows each verb that a program calls: its arguments, its result and its time.\n"
      "Usage: bypass verbs-trace [OPTIONS] [--] PROGRAM [ARGUMENTS]\n\n"
      "  BYPASS_SOFT=vhost:$XDG_RUNTIME_DIR/rdma BYPASS_SOFT_ADDR=10.9.0.1/24 bypass verbs-trace -- ibv_rc_pingpong -d "
      "soft0 "
      "-g 1\n\n"
      "Options:\n"
      "  --json            One JSON object for each call\n"
      "  --summary         How often each verb was called, and how long that took, when the program ends\n"
      "  -o, --output FILE Adds to FILE instead of standard error\n\n"
      "With BYPASS_SOFT the program has the software devices. A card's verbs are shown the same way.\n"
      "Ends as the program does; with 125 when a library is missing, 126 when the program cannot be run so, 127 when "
      "there "
      "is no such program.\n");
}

}  // namespace

int trace_verbs(const std::vector<std::string>& words) {
  TraceOptions options;
  if (const std::string problem = parse_trace(words, options); !problem.empty()) return trace_fails(kUsage, problem);
  if (options.help) return print_trace_help(), kOk;

  std::vector<std::string> environment = own_environment();
  const char* const preloads = getenv("LD_PRELOAD");
  const bool are_preloaded = preloads != nullptr && std::string_view(preloads).find(kDevices) != std::string_view::npos;
  const bool wants_devices = getenv("BYPASS_SOFT") != nullptr && !are_preloaded;
  for (const std::string_view name : {kDevices, kTrace}) {  // the trace stands in front of the devices
    if (name == kDevices && !wants_devices) continue;
    const std::string library = find_library(name);
    if (const std::string problem = library_problem(library, name); !problem.empty())
      return trace_fails(kNotStarted, problem);
    put_before_preloads(environment, library);
  }
  set_variable(environment, verbs_trace::kFormVariable, options.form);
  if (!options.file.empty()) set_variable(environment, verbs_trace::kFileVariable, options.file);

  const ProgramFile program = find_program(options.program[0], getenv("PATH"));
  if (program.path.empty()) return trace_fails(program.exit_code, program.problem);
  if (const std::string problem = preload_problem(program.path); !problem.empty())
    return trace_fails(kCannotRun, problem + "; its verbs cannot be shown");
  execve(program.path.c_str(), pointers_to(options.program).data(), pointers_to(environment).data());
  return trace_fails(errno == ENOENT ? kNotThere : kCannotRun,
                     fmt::format("{}: {}", program.path, std::strerror(errno)));
}

}  // namespace bypass::tool
