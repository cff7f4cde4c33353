// A port whose device has been taken away, and may come back.
#pragma once

#include "stack/context.h"
#include "stack/ip/network.h"

namespace bypass {

/// Whether the path leads through such a port. For Linux the routes of an interface go with the interface, so a new
/// connection and a datagram find the network unreachable. Connections that are there wait for TCP's own time-out.
inline bool leads_nowhere(Context& ctx, const Path& path) {
  if (path.neighbour == Path::kLooped || path.port >= ctx.ports) return false;
  const Port* const port = ctx.queue(path.port).port();
  return port != nullptr && port->link() == LinkState::kDown && port->stats().gone;
}

}  // namespace bypass
