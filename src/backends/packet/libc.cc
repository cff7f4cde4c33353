#include "backends/packet/libc.h"

namespace bypass::packet {

Libc libc;
const Host* host = nullptr;

bool bind_libc(const Host* process, const char** missing) {
  host = process;
  BYPASS_PACKET_LIBC_CALLS(BYPASS_LIBC_LOOK_UP)
  return true;
}

}  // namespace bypass::packet
