#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {

Libc libc;
const Host* host = nullptr;

bool bind_libc(const Host* process, const char** missing) {
  host = process;
  BYPASS_DPDK_LIBC_CALLS(BYPASS_LIBC_LOOK_UP)
  return true;
}

}  // namespace bypass::dpdk
