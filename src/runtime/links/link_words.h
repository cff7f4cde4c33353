// What a user is told of links to accelerated peers: that a link is up, why none was made, or that one is lost.
#pragma once

#include <array>

#include "config/config.h"
#include "fastpath/link/peer_link.h"
#include "observe/reasons.h"
#include "runtime/ports/port_set.h"

namespace bypass::runtime {

/// A LinkWord is made with the shard's lock held, perhaps by a handler that has interrupted malloc. It allocates
/// nothing.
struct LinkWord {
  observe::Reason reason = observe::Reason::kNone;  // kNone: `bypass why` tells nothing
  std::array<char, 240> detail{};
  std::array<char, 320> log{};
};

/// `place`: the number of the run directory; 0 if the directory cannot be shared (Process).
LinkWord word_of(const fastpath::PeerLink& link, const Config& config, const PortSet& ports, std::uint32_t place);

}  // namespace bypass::runtime
