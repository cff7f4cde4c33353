// ICMP (RFC 792, RFC 1122 §3.2.2). It answers echo requests, and reports unused ports and packets of which fragments
// were missing. It turns received errors into IcmpError for the protocol whose packet they quote.
#pragma once

#include <optional>

#include "stack/context.h"
#include "stack/frame/packet.h"
#include "stack/ip/network.h"

namespace bypass {

/// Takes over a received ICMP message. Returns an error that quotes a packet of ours; the quoted protocol decides about
/// it.
std::optional<IcmpError> on_icmp(Network& network, Context& ctx, const L4Input& input);

/// The error that the sender of a frame gets if the frame never left because its neighbour did not answer.
std::optional<IcmpError> neighbour_unreachable(const Packet& frame);

/// `first` is the first fragment of a datagram that was not complete in time. Tells its sender (rate-limited), and
/// takes the frame over.
void report_reassembly_timeout(Network& network, Context& ctx, Packet* first);

}  // namespace bypass
