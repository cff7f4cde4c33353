// Why a fast path is not taken, was left, or ended its connection. The names are what `bypass why` and counters show.
// Tests: tests/fastpath/peer_links_devices_test.cc.
#pragma once

#include <cstdint>

namespace bypass::fastpath {

enum class Reason : std::uint8_t {
  kNone = 0,
  // The peer broke the protocol: its own connection ends.
  kBadRecord,     // a control record of unknown type, or with a length or field that the protocol does not allow
  kBadState,      // a record or message that must not come now
  kBadEpoch,      // a path change that is not the next one
  kBadOffset,     // a stream offset that does not follow from what came before
  kBadCredit,     // a counter that claims more than was sent
  kRingOverrun,   // more placed than the ring has room for
  kBadSequence,   // a message was left out or came twice
  kBadImmediate,  // an operation that does not exist, or a length that it cannot have
  // The peer broke what a whole link rests on: its connections go on over TCP.
  kUnknownLane,     // a message for a lane that never existed
  kMessageOverrun,  // more messages than receives are posted, or more returned than were sent
  // The link
  kLinkError,     // the mover failed: queue pair in error, port down, the peer's process gone
  kPeerLinkDown,  // the peer says that its end has failed
  // A lane was refused (LANE_NO)
  kNoMemory,
  kPolicy,
  // A link was not made (LINK_ACC, LINK_READY)
  kNoDevice,        // no device that can make it, or the device has no more queue pairs
  kLinkVersion,     // the peer's set-up is of another version, or for another kind of link
  kLinkValue,       // a value that is not allowed
  kForeignAddress,  // the peer's device has another address than its TCP
  kUnreachable,     // no route from device to device
  kUnproven,        // the first bytes over it were not the expected ones
  kTooSlow,         // it was not up in time
  // the peer does not have our run directory, or we do not have the peer's: it is on another host or in another
  // container
  kElsewhere,
  kOtherUser,       // the peer is another user's process
  kNoSharedMemory,  // no socket, descriptor or memory for what two processes share
  // No link was asked for
  kNotOffered,        // the peer's SYN or SYN-ACK did not offer a link
  kNotHere,           // we have no device for it
  kNotThere,          // the peer's option says that it has no device for it
  kBehindRouter,      // the peer is outside the port's own subnets, and no rule names it
  kNotOfferedBeyond,  // a rule names the peer, but the peer's SYN or SYN-ACK did not offer a link
  kOneFamily,         // both ends are connections of one stack
  // A link has no more lanes
  kLanesTaken,
};
inline constexpr Reason kLastReason = Reason::kLanesTaken;

const char* to_string(Reason reason);

}  // namespace bypass::fastpath
