// What a user is told of links to accelerated peers: that one is up, or why one was not made, or is lost.
#pragma once

#include <string>

#include "fastpath/peer_link.h"
#include "observe/reasons.h"
#include "runtime/config.h"
#include "runtime/ports.h"

namespace bypass::runtime {

struct LinkWord {
  std::string log;
  observe::Reason reason = observe::Reason::kNone;  // kNone: nothing for `bypass why`
  std::string detail;
};

LinkWord word_of(const fastpath::PeerLink& link, const Config& config, const PortSet& ports);

}  // namespace bypass::runtime
