// An order of flows, for tables of steered flows.
#pragma once

#include <tuple>

#include "stack/frame/port.h"

namespace bypass {

struct FlowOrder {
  bool operator()(const FlowSpec& a, const FlowSpec& b) const {
    return std::tie(a.protocol, a.local, a.remote) < std::tie(b.protocol, b.local, b.remote);
  }
};

}  // namespace bypass
