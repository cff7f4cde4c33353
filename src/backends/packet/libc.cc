#include "backends/packet/libc.h"

namespace bypass::packet {

Libc libc;
const Host* host = nullptr;

bool bind_libc(const Host* process, const char** missing) {
  host = process;
#define BYPASS_PACKET_LOOK_UP(result, name, parameters)                     \
  libc.name = reinterpret_cast<result(*) parameters>(process->libc(#name)); \
  if (libc.name == nullptr) {                                               \
    *missing = #name;                                                       \
    return false;                                                           \
  }
  BYPASS_PACKET_LIBC_CALLS(BYPASS_PACKET_LOOK_UP)
#undef BYPASS_PACKET_LOOK_UP
  return true;
}

}  // namespace bypass::packet
