#include "preload/raw/catch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "preload/raw/entry.h"
#include "preload/raw/go_program.h"
#include "preload/raw/patch.h"
#include "preload/raw/site.h"
#include "runtime/life/raw_calls.h"

namespace bypass::preload {
namespace {

using namespace std::string_view_literals;

/// Every call of the packages above the runtime goes through the one, whose package has moved. The runtime's own that
/// concern us are in functions of theirs up to Go 1.20.
constexpr std::array kFunctions{"runtime/internal/syscall.Syscall6"sv,
                                "internal/runtime/syscall.Syscall6"sv,
                                "internal/runtime/syscall/linux.Syscall6"sv,
                                "syscall.rawVforkSyscall"sv,
                                "runtime.epollcreate1"sv,
                                "runtime.epollctl"sv,
                                "runtime.epollwait"sv,
                                "runtime.exit"sv,
                                "runtime.write1"sv};

/// Null, or why the calls are not caught.
const char* catch_calls_of_go() {
  if (!raw::has_threads_of_c()) return "its threads are not made by libc (it is built without cgo)";
  std::vector<raw::Site> sites;
  bool has_any_call = false;
  const char* const problem =
      raw::visit_functions(kFunctions, [&](std::string_view name, std::span<const std::uint8_t> code) {
        const std::size_t before = sites.size();
        const bool understood = raw::find_sites(code, sites);
        has_any_call = has_any_call || (name.ends_with(".Syscall6") && sites.size() > before);
        return understood;
      });
  if (problem != nullptr) return problem;
  if (!has_any_call) return "it has no function Syscall6, as Go 1.19 and later have";
  std::ranges::sort(sites, {}, &raw::Site::at);
  raw::prepare_stacks();
  return raw::replace_calls(sites, raw::entry());
}

}  // namespace

void catch_raw_calls() {
  if (!raw::is_go_program()) return;
  if (!runtime::may_catch_raw_calls()) return runtime::report_uncaught_calls(nullptr);
  if (const char* const problem = catch_calls_of_go(); problem != nullptr) runtime::report_uncaught_calls(problem);
}

}  // namespace bypass::preload
