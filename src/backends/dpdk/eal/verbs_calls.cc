#include "backends/dpdk/eal/verbs_calls.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

#include "backends/dpdk/eal/libc.h"

extern "C" int ibv_fork_init();

// What a call does before the libraries are there, as when a driver registers itself: nothing. A list of devices is
// empty then, and no other call follows.
extern "C" long bypass_without_verbs() {
  errno = ENOSYS;
  return 0;
}

// Each of the libraries' names is a jump through a pointer: arguments and result pass untouched, whatever they are.
// verbs_calls.inc is made of what the drivers' archives call (cmake/dpdk.cmake).
extern "C" {
#define X(name)                                                                                     \
  long (*bypass_to_##name)() = bypass_without_verbs;                                                \
  asm(".pushsection .text\n.globl " #name "\n.hidden " #name "\n.type " #name ", @function\n" #name \
      ":\n\tendbr64\n\tjmp *bypass_to_" #name "(%rip)\n.size " #name ", . - " #name "\n.popsection\n");
#include "verbs_calls.inc"
#undef X
}

namespace bypass::dpdk {
namespace {

struct Call {
  const char* name;
  long (**target)();
};

#define X(name) {#name, &bypass_to_##name},
constexpr Call kCalls[] = {
#include "verbs_calls.inc"
};
#undef X

// Of a provider the functions that only its own cards need.
void bind_calls(void* library, const char* part) {
  for (const Call& call : kCalls) {
    if (std::strstr(call.name, part) == nullptr) continue;
    if (void* const found = dlsym(library, call.name); found != nullptr)
      *call.target = reinterpret_cast<long (*)()>(found);
  }
}

bool bind_library(const char* file, const char* part) {
  void* const library = libc.dlopen(file, RTLD_NOW | RTLD_LOCAL);  // never closed: it may have threads
  if (library != nullptr) bind_calls(library, part);
  return library != nullptr;
}

}  // namespace

bool bind_verbs(std::string& problem) {
  static const bool has_verbs = bind_library("libibverbs.so.1", "ibv_");
  static const bool has_mlx5 = bind_library("libmlx5.so.1", "mlx5dv_");
  static const bool has_mlx4 = bind_library("libmlx4.so.1", "mlx4dv_");
  // Before anything is registered: kernels before Linux 5.12 share a queue's pages with a forked child until one of
  // both writes, and the card would go on with the child's.
  static const int fork_error = has_verbs ? ibv_fork_init() : 0;
  if (fork_error != 0)
    host->log(LogLevel::kWarn, "a program that forks may lose its card: the kernel refuses ibv_fork_init");
  if (has_verbs && (has_mlx5 || has_mlx4)) return true;
  problem = std::string(has_verbs ? "libmlx5.so.1 and libmlx4.so.1 are" : "libibverbs.so.1 is") +
            " not installed, by which the card's driver speaks with the kernel's (apt-get install ibverbs-providers)";
  return false;
}

}  // namespace bypass::dpdk
