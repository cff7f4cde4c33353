// Words for the numbers of layout.h: paths of sockets, states of connections.
#include <array>

#include "observe/layout.h"

namespace bypass::observe {
namespace {

template <std::size_t size>
const char* name_of(const std::array<const char*, size>& names, std::uint8_t value) {
  return value < size ? names[value] : "unknown";
}

}  // namespace

const char* path_name(std::uint8_t path) {
  static constexpr std::array kNames = {"undecided", "kernel", "wire", "dual", "shm", "rc", "framed"};
  return name_of(kNames, path);
}

const char* state_name(std::uint8_t state) {
  static constexpr std::array kNames = {"CLOSED",      "LISTEN",     "SYN-SENT",   "SYN-RECEIVED",
                                        "ESTABLISHED", "FIN-WAIT-1", "FIN-WAIT-2", "CLOSE-WAIT",
                                        "CLOSING",     "LAST-ACK",   "TIME-WAIT",  "open"};
  return name_of(kNames, state);
}

}  // namespace bypass::observe
