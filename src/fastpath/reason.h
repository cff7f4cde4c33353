// Reason: why a connection does not use a link, has left its link, or has ended because of it. `bypass why` and the
// counters show the text of to_string().
// Tests: tests/fastpath/peer_links_devices_test.cc.
#pragma once

#include <cstdint>

namespace bypass::fastpath {

enum class Reason : std::uint8_t {
  kNone = 0,
  // The peer broke the protocol of one connection. That connection ends.
  kBadRecord,     // a control record has an unknown type, or a length or field that the protocol does not allow
  kBadState,      // a record or message came at a time when it must not come
  kBadEpoch,      // a path change does not have the number after the last one
  kBadOffset,     // a stream offset does not follow from what came before
  kBadCredit,     // a counter claims more bytes than were sent
  kRingOverrun,   // the peer wrote more into a ring than the ring has room for
  kBadSequence,   // a message was left out or came twice
  kBadImmediate,  // a message's immediate names an unknown operation, or a length that the operation cannot have
  // The peer broke the protocol of a whole link. The link ends, and its connections go on over TCP.
  kUnknownLane,     // a message is for a lane that never existed
  kMessageOverrun,  // the peer sent more messages than it had credit for, or returned more credit than was used
  // The link failed, and its connections go on over TCP.
  kLinkError,     // the mover failed: its queue pair is in error, its port is down, or the peer's process has gone
  kPeerLinkDown,  // the peer says that its end has failed
  // One end refused a lane for one connection (LANE_NO).
  kNoMemory,
  kPolicy,
  // One end refused a link, or the link did not come up (LINK_ACC, LINK_READY).
  kNoDevice,        // no device can make it, or the device has no queue pair left
  kLinkVersion,     // the peer's set-up has another version, or is for another kind of link
  kLinkValue,       // the peer's set-up has a value that is not allowed
  kForeignAddress,  // the address of the peer's device is not the address of its TCP connection
  kUnreachable,     // there is no route from device to device
  kUnproven,        // the first bytes over the link were not the expected ones
  kTooSlow,         // the link was not up in time
  kElsewhere,       // the ends do not have the same run directory: the peer is on another host or in another container
  kOtherUser,       // the peer is another user's process
  kNoSharedMemory,  // there is no socket, descriptor or memory for what the two processes would share
  // No link was asked for.
  kNotOffered,        // the peer's SYN or SYN-ACK did not offer a link
  kNotHere,           // this end has no device for a link
  kNotThere,          // the peer's SYN or SYN-ACK says that it has no device for a link
  kBehindRouter,      // the peer is outside the port's own subnets, and no rule names it
  kNotOfferedBeyond,  // a rule names the peer, but the peer's SYN or SYN-ACK did not offer a link
  kOneFamily,         // both ends are connections of one stack
  // The link is up, and has no lane left for this connection.
  kLanesTaken,
};
inline constexpr Reason kLastReason = Reason::kLanesTaken;

const char* to_string(Reason reason);

}  // namespace bypass::fastpath
