#include "runtime/links/link_words.h"

#include <algorithm>
#include <cstdio>

#include "os/net/address_text.h"

namespace bypass::runtime {

using observe::Reason;

namespace {

using fastpath::Mover;
using fastpath::PeerLink;

template <std::size_t size, typename... Arguments>
void write(std::array<char, size>& out, const char* format, Arguments... arguments) {
  std::snprintf(out.data(), size, format, arguments...);
}

constexpr const char* kNobody = "no process of the family has the device now";

void say_why_no_rdma(LinkWord& word, const PeerLink& link, const Config& config, const PortSet& ports) {
  if (config.rdma == RdmaMode::kOff) return write(word.detail, "BYPASS_RDMA=off");
  const auto& entries = ports.entries();
  const auto entry = std::find_if(entries.begin(), entries.end(), [&link](const PortSet::Entry& each) {
    return each.port != nullptr && each.index == link.port;
  });
  if (entry == entries.end()) return write(word.detail, "%s", kNobody);
  const PortConfig& port = config.ports[static_cast<std::size_t>(entry - entries.begin())];
  if (!config.wants_links(port))
    return write(word.detail,
                 "BYPASS_RDMA=auto takes the device of a verbs port that has a card, which %s%s%s is not: "
                 "BYPASS_RDMA=NAME names a device",
                 port.kind.c_str(), port.target.empty() ? "" : ":", port.target.c_str());
  if (!entry->links_problem.empty()) word.reason = Reason::kNone;  // said when the port was opened
  write(word.detail, "%s", kNobody);
}

/// Which setting it is that links of this kind have no device over a port.
void say_why_not_here(LinkWord& word, const PeerLink& link, const Config& config, const PortSet& ports,
                      std::uint32_t place) {
  if (link.mover == Mover::kRc) return say_why_no_rdma(word, link, config, ports);
  if (!config.local) return write(word.detail, "BYPASS_LOCAL=off");
  write(word.detail, "%s", place == 0 ? "the run directory (BYPASS_RUN_DIR) cannot be used" : kNobody);
}

bool peer_offers_none(fastpath::Reason reason) {
  return reason == fastpath::Reason::kNotOffered || reason == fastpath::Reason::kNotOfferedBeyond;
}

Reason reason_of(const PeerLink& link) {
  const bool shm = link.mover == Mover::kShm;
  if (link.stage == PeerLink::Stage::kUp) return Reason::kNone;
  if (link.stage == PeerLink::Stage::kEnding) return shm ? Reason::kShmLinkLost : Reason::kRdmaLost;
  if (peer_offers_none(link.reason)) return Reason::kPeerPlain;
  if (link.reason == fastpath::Reason::kLanesTaken) return Reason::kNoLane;
  return shm ? Reason::kNoShmLink : Reason::kNoRdma;
}

const char* state_of(const PeerLink& link) {
  if (link.stage == PeerLink::Stage::kUp) return "is up";
  return link.stage == PeerLink::Stage::kEnding ? "is lost: " : "is not used: ";
}

}  // namespace

LinkWord word_of(const PeerLink& link, const Config& config, const PortSet& ports, std::uint32_t place) {
  LinkWord word;
  word.reason = reason_of(link);
  const char* const why = word.reason == Reason::kNone ? "" : fastpath::to_string(link.reason);
  const AddressText address = to_text(link.peer);
  write(word.log, "%s %s %s%s", link.mover == Mover::kShm ? "shared memory with" : "RDMA connection to",
        link.peer.is_any() ? "peers" : address.c_str(), state_of(link), why);
  if (link.reason == fastpath::Reason::kNotHere)
    say_why_not_here(word, link, config, ports, place);
  else if (link.reason != fastpath::Reason::kNotOffered &&
           word.reason != Reason::kNoLane)  // whose sentences say it all
    write(word.detail, "%s", why);
  return word;
}

}  // namespace bypass::runtime
