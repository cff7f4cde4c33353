#include "softverbs/abi/real.h"

#include <dlfcn.h>

namespace bypass::softverbs {

namespace {

// The real library, where another of its name was loaded before it (drop_in/drop_in.cc).
bool g_chained = false;
void* g_library = nullptr;

}  // namespace

void* real_function(const char* name) {
  if (g_chained) return g_library == nullptr ? nullptr : dlsym(g_library, name);
  // Without a version dlsym() returns the default one, the newest, as a program that is built today gets it.
  if (void* const next = dlsym(RTLD_NEXT, name); next != nullptr) return next;
  static void* const library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace bypass::softverbs

extern "C" void bypass_softverbs_use_library(void* library) {
  bypass::softverbs::g_chained = true;
  bypass::softverbs::g_library = library;
}
