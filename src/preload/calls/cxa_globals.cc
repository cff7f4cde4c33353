// The exception runtime's per-thread state, in initial-exec TLS: libstdc++'s own (linked in statically) goes by
// way of __tls_get_addr, which may allocate.
#include <cxxabi.h>

namespace __cxxabiv1 {

// Itanium C++ ABI §2.2.2
struct __cxa_eh_globals {
  void* caught_exceptions;
  unsigned uncaught_exceptions;
};

namespace {
thread_local constinit __cxa_eh_globals eh_globals{};
}

extern "C" __cxa_eh_globals* __cxa_get_globals() noexcept {
  return &eh_globals;
}

extern "C" __cxa_eh_globals* __cxa_get_globals_fast() noexcept {
  return &eh_globals;
}

}  // namespace __cxxabiv1
