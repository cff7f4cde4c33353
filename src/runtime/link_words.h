// What a user is told of links to accelerated peers: that one is up, or why one was not made, or is lost.
#pragma once

#include <array>

#include "config/config.h"
#include "fastpath/link/peer_link.h"
#include "observe/reasons.h"
#include "runtime/ports.h"

namespace bypass::runtime {

/// Made with the shard's lock held, by a handler perhaps that has interrupted malloc: nothing of it is allocated.
struct LinkWord {
  observe::Reason reason = observe::Reason::kNone;  // kNone: nothing for `bypass why`
  std::array<char, 240> detail{};
  std::array<char, 320> log{};
};

/// `place`: of the run directory, 0 if it cannot be shared (Process).
LinkWord word_of(const fastpath::PeerLink& link, const Config& config, const PortSet& ports, std::uint32_t place);

}  // namespace bypass::runtime
