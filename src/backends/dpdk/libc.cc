#include "backends/dpdk/libc.h"

namespace bypass::dpdk {

Libc libc;
const Host* host = nullptr;

bool bind_libc(const Host* process, const char** missing) {
  host = process;
#define BYPASS_DPDK_LOOK_UP(result, name, parameters)                       \
  libc.name = reinterpret_cast<result(*) parameters>(process->libc(#name)); \
  if (libc.name == nullptr) {                                               \
    *missing = #name;                                                       \
    return false;                                                           \
  }
  BYPASS_DPDK_LIBC_CALLS(BYPASS_DPDK_LOOK_UP)
#undef BYPASS_DPDK_LOOK_UP
  return true;
}

}  // namespace bypass::dpdk
