// Sockets that share a port (socket(7), SO_REUSEPORT): which socket a flow belongs to.
#pragma once

#include <cstdint>

namespace bypass {

/// Chooses the socket for a flow among those in the list from `one` on (through `next`) for which `joins` is true; this
/// holds for `one`. While no socket comes or goes, a flow's choice stays the same.
template <auto next, typename Socket, typename Joins>
Socket* choose_by_flow(Socket& one, std::uint32_t flow_hash, const Joins& joins) {
  std::uint64_t sharing = 0;
  for (const Socket* s = &one; s != nullptr; s = s->*next) sharing += joins(*s) ? 1 : 0;
  std::uint64_t before = (sharing * flow_hash) >> 32;
  for (Socket* s = &one; s != nullptr; s = s->*next)
    if (joins(*s) && before-- == 0) return s;
  return &one;
}

}  // namespace bypass
