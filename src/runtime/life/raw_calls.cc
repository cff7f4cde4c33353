#include "runtime/life/raw_calls.h"

#include <string>
#include <string_view>

#include "config/config.h"
#include "os/log/environment_copy.h"
#include "runtime/life/before_start.h"
#include "runtime/process.h"

namespace bypass::runtime {

bool may_catch_raw_calls() {
  const char* const value = find_variable(kept_environment(), "BYPASS_RAW_CALLS");
  if (value != nullptr) return std::string_view(value) != "off";
  const bool has_file = find_variable(kept_environment(), "BYPASS_CONFIG") != nullptr || has_system_file();
  return !has_file || configuration().raw_calls == RawCalls::kAuto;
}

void report_uncaught_calls(const char* problem) {
  if (!may_name_ports() || !configuration().wants_anything()) return;
  constexpr observe::Reason kReason = observe::Reason::kEscapedSyscall;
  if (problem == nullptr) return region().why(kReason, -1, 0, Endpoint{}, "BYPASS_RAW_CALLS is off");
  report_problem(kReason, std::string("the program makes system calls without libc, which are not caught: ") + problem);
  end_if_strict();
}

}  // namespace bypass::runtime
