// liburing's ways to make a ring. It makes its system calls by itself: its functions are all that is to be seen.
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "preload/escape.h"
#include "preload/inside.h"
#include "preload/numbers.h"
#include "preload/symbols.h"

struct io_uring;
struct io_uring_params;

namespace bypass::preload {
namespace {

// Behind us in the global scope, or loaded for one library alone, as a Python module's.
void* find_in_liburing(const char* name) {
  KeepErrno keep;
  if (void* const found = dlsym(RTLD_NEXT, name)) return found;
  for (const char* const soname : {"liburing.so.2", "liburing.so.1"}) {
    void* const library = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* const found = dlsym(library, name);
    dlclose(library);  // the reference that was taken just now; whoever calls holds its own
    if (found != nullptr) return found;
  }
  return nullptr;
}

// As liburing's, that return a negative error number.
template <typename R, typename... A>
R call(const char* name, A... arguments) {
  if (!goes_straight()) note_io_uring("liburing");
  auto* const real_one = reinterpret_cast<R (*)(A...)>(find_in_liburing(name));
  return real_one != nullptr ? real_one(arguments...) : -ENOSYS;
}

BYPASS_EXPORT(int, io_uring_queue_init, (unsigned entries, io_uring* ring, unsigned flags)) {
  return call<int>("io_uring_queue_init", entries, ring, flags);
}

BYPASS_EXPORT(int, io_uring_queue_init_params, (unsigned entries, io_uring* ring, io_uring_params* params)) {
  return call<int>("io_uring_queue_init_params", entries, ring, params);
}

BYPASS_EXPORT(int, io_uring_queue_init_mem,
              (unsigned entries, io_uring* ring, io_uring_params* params, void* memory, size_t bytes)) {
  return call<int>("io_uring_queue_init_mem", entries, ring, params, memory, bytes);
}

BYPASS_EXPORT(int, io_uring_queue_init_try_nosqarr, (unsigned entries, io_uring* ring, io_uring_params* params)) {
  return call<int>("io_uring_queue_init_try_nosqarr", entries, ring, params);
}

BYPASS_EXPORT(int, io_uring_setup, (unsigned entries, io_uring_params* params)) {
  return call<int>("io_uring_setup", entries, params);
}

// For a descriptor of a ring that liburing has not made, as another process's.
BYPASS_EXPORT(int, io_uring_queue_mmap, (int fd, io_uring_params* params, io_uring* ring)) {
  return call<int>("io_uring_queue_mmap", fd, params, ring);
}

}  // namespace
}  // namespace bypass::preload
