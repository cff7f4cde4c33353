#include "backends/dpdk/eal/guard.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>

#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {
namespace {

struct Guard {
  sigjmp_buf back;
  char why[480];
};
thread_local Guard* guard = nullptr;

}  // namespace

bool run_guarded(void (*body)(void*), void* argument, std::string& problem) {
  Guard here;
  guard = &here;
  // Only C code lies between here and give_up(): no destructor is jumped over.
  const bool first = sigsetjmp(here.back, 0) == 0;
  if (first) body(argument);
  guard = nullptr;
  if (!first) problem = here.why;
  return first;
}

void give_up_if_guarded(const char* where, const char* why) {
  if (guard != nullptr) give_up(where, why);
}

void give_up(const char* where, const char* why) {
  char text[480];
  std::snprintf(text, sizeof text, "DPDK gave up in %s: %s", where, why);
  for (char* c = text; *c != '\0'; c++)
    if (*c == '\n') *c = ' ';
  if (guard == nullptr) {
    host->log(LogLevel::kError, text);
    std::abort();
  }
  std::snprintf(guard->why, sizeof guard->why, "%s", text);
  siglongjmp(guard->back, 1);
}

}  // namespace bypass::dpdk
