// liburing's functions that make a ring. liburing makes its system calls directly, so only these functions can be seen.
// A program without liburing finds these names here, too, and gets ENOSYS from them.
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>

#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/straight.h"
#include "preload/symbols.h"

struct io_uring;
struct io_uring_params;

namespace bypass::preload {
namespace {

/// Looks in a library, or in one that it needs.
void* find_in(const link_map& library, const char* name) {
  void* const handle = dlopen(library.l_name, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  void* const found = dlsym(handle, name);
  dlclose(handle);  // the reference that was just taken
  return found;
}

/// Finds the function that the code at `caller` would have called without us: of its own library, or of one that it
/// needs, which may be loaded for it alone, under any name. If the call is a jump at a function's end, `caller` is
/// another's address; then any library's function is taken.
void* find_for(const void* caller, const char* name, const void* ours) {
  const KeepErrno keep;
  Dl_info where;
  link_map* library = nullptr;
  if (dladdr1(caller, &where, reinterpret_cast<void**>(&library), RTLD_DL_LINKMAP) == 0) library = nullptr;
  void* found = library != nullptr ? find_in(*library, name) : nullptr;
  if (found == nullptr || found == ours) found = dlsym(RTLD_NEXT, name);
  while (library != nullptr && library->l_prev != nullptr) library = library->l_prev;
  for (; found == nullptr && library != nullptr; library = library->l_next) {
    found = find_in(*library, name);
    if (found == ours) found = nullptr;
  }
  dlerror();  // removes an error that the program has not caused
  return found;
}

// Like liburing's functions, these return a negative error number.
template <typename... A>
int call(const void* caller, const char* name, int (*ours)(A...), A... arguments) {
  auto* const theirs = reinterpret_cast<int (*)(A...)>(find_for(caller, name, reinterpret_cast<const void*>(ours)));
  const int result = theirs != nullptr ? theirs(arguments...) : -ENOSYS;
  if (result >= 0 && !goes_straight()) note_io_uring("liburing");
  return result;
}

#define BYPASS_LIBURING(name, parameters, ...)                                   \
  BYPASS_EXPORT(int, name, parameters) {                                         \
    return call(__builtin_return_address(0), #name, bypass_##name, __VA_ARGS__); \
  }

BYPASS_LIBURING(io_uring_queue_init, (unsigned entries, io_uring* ring, unsigned flags), entries, ring, flags)
BYPASS_LIBURING(io_uring_queue_init_params, (unsigned entries, io_uring* ring, io_uring_params* params), entries, ring,
                params)
BYPASS_LIBURING(io_uring_queue_init_mem,
                (unsigned entries, io_uring* ring, io_uring_params* params, void* memory, size_t bytes), entries, ring,
                params, memory, bytes)
BYPASS_LIBURING(io_uring_queue_init_try_nosqarr, (unsigned entries, io_uring* ring, io_uring_params* params), entries,
                ring, params)
BYPASS_LIBURING(io_uring_setup, (unsigned entries, io_uring_params* params), entries, params)
// For the descriptor of a ring that liburing has not made, for example another process's.
BYPASS_LIBURING(io_uring_queue_mmap, (int fd, io_uring_params* params, io_uring* ring), fd, params, ring)

}  // namespace
}  // namespace bypass::preload
