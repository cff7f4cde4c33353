#include "runtime/link_words.h"

#include <algorithm>

#include "runtime/address_text.h"

namespace bypass::runtime {

using observe::Reason;

namespace {

using fastpath::Mover;
using fastpath::PeerLink;

/// Which setting it is that links of this kind have no device over a port. Empty: that was said when it was opened.
std::string why_not_here(const PeerLink& link, const Config& config, const PortSet& ports) {
  if (link.mover == Mover::kShm)
    return config.local ? "the run directory (BYPASS_RUN_DIR) cannot be used" : "BYPASS_LOCAL=off";
  if (config.rdma == RdmaMode::kOff) return "BYPASS_RDMA=off";
  const auto& entries = ports.entries();
  const auto entry = std::find_if(entries.begin(), entries.end(), [&link](const PortSet::Entry& each) {
    return each.port != nullptr && each.index == link.port;
  });
  const std::size_t index = entry != entries.end() ? static_cast<std::size_t>(entry - entries.begin()) : 0;
  if (!config.wants_links(config.ports[index])) {
    const std::string port = port_text(config.ports[index]);
    return "BYPASS_RDMA=auto takes the device of a verbs port that has a card, which " + port +
           " is not: BYPASS_RDMA=NAME names a device";
  }
  if (entry != entries.end() && !entry->links_problem.empty()) return {};
  return "no process of the family has the device now";
}

Reason reason_of(const PeerLink& link) {
  const bool shm = link.mover == Mover::kShm;
  if (link.stage == PeerLink::Stage::kEnding) return shm ? Reason::kShmLinkLost : Reason::kRdmaLost;
  if (link.reason == fastpath::Reason::kNotOffered) return Reason::kPeerPlain;
  if (link.reason == fastpath::Reason::kLanesTaken) return Reason::kNoLane;
  return shm ? Reason::kNoShmLink : Reason::kNoRdma;
}

}  // namespace

LinkWord word_of(const PeerLink& link, const Config& config, const PortSet& ports) {
  const bool shm = link.mover == Mover::kShm;
  const std::string address = link.peer.is_any() ? "peers" : to_text(link.peer).c_str();
  const std::string what = (shm ? "shared memory with " : "RDMA connection to ") + address;
  if (link.stage == PeerLink::Stage::kUp) return {what + " is up", Reason::kNone, {}};
  LinkWord word;
  word.reason = reason_of(link);
  word.detail = fastpath::to_string(link.reason);
  if (link.reason == fastpath::Reason::kNotHere) {
    word.detail = why_not_here(link, config, ports);
    if (word.detail.empty()) word.reason = Reason::kNone;
  }
  if (word.reason == Reason::kPeerPlain || word.reason == Reason::kNoLane) word.detail.clear();  // they say it all
  const bool lost = link.stage == PeerLink::Stage::kEnding;
  word.log = what + (lost ? " is lost: " : " is not used: ") + fastpath::to_string(link.reason);
  return word;
}

}  // namespace bypass::runtime
