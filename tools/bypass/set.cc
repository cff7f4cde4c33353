// bypass set: makes failures by hand, for drills.
#include <fmt/format.h>

#include "command.h"

namespace bypass::tool {

namespace {
/// How long to wait. A process that computes looks a few times a second; one that sleeps looks when it wakes.
constexpr int kPatienceMs = 2000;
}  // namespace

int run_set(const SetOptions& options) {
  if (options.pid == 0 || options.what.empty()) {
    fmt::print(stderr, "bypass: set: {} is missing: bypass set PID WHAT; accepted for WHAT is inject=qp-error\n",
               options.pid == 0 ? "PID" : "WHAT");
    return kUsage;
  }
  if (options.what != "inject=qp-error") {
    fmt::print(stderr, "bypass: set '{}': there is no such thing; accepted is inject=qp-error\n", options.what);
    return kUsage;
  }
  const observe::Listing listing = find_processes(options.pid);
  if (listing.processes.empty()) return kNothing;
  const observe::Snapshot& process = listing.processes.front();
  if (process.follows()) {
    fmt::print(stderr, "bypass: process {} uses the ports of process {}, which has the links: set that one\n",
               process.pid, process.port_owner);
    return kNothing;
  }
  std::string problem;
  const int count = observe::ask_drill(process.path, observe::Drill::kQpError, kPatienceMs, problem);
  if (!problem.empty()) {
    fmt::print(stderr, "bypass: {}\n", problem);
    return kNothing;
  }
  if (count < 0) {
    fmt::print("process {} sleeps: its links to accelerated peers fail when it wakes\n", process.pid);
  } else if (count == 0) {
    fmt::print("process {} has no link to an accelerated peer that could fail\n", process.pid);
  } else {
    fmt::print("process {}: {} link{} to accelerated peers failed\n", process.pid, count, count == 1 ? "" : "s");
  }
  return kOk;
}

}  // namespace bypass::tool
