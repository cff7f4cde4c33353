// ICMP (RFC 792, RFC 1122 §3.2.2): answering echo requests, reporting ports nobody has and packets that were never
// whole, and turning the errors that others report into IcmpError for the protocol whose packet they quote.
#pragma once

#include <optional>

#include "stack/context.h"
#include "stack/frame/packet.h"
#include "stack/ip/network.h"

namespace bypass {

/// One received ICMP message; takes the packet over. An error that quotes a packet of ours is returned for the
/// protocol to judge.
std::optional<IcmpError> on_icmp(Network& network, Context& ctx, const L4Input& input);

/// What a frame of ours that never left reports to its sender: its neighbour did not answer.
std::optional<IcmpError> neighbour_unreachable(const Packet& frame);

/// A datagram whose first fragment this is was not whole in time: tells its sender (rate-limited). Takes the frame
/// over.
void report_reassembly_timeout(Network& network, Context& ctx, Packet* first);

}  // namespace bypass
