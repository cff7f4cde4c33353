// Why a fast path is not taken, was left, or ended its connection. The names are what `bypass why` and counters show.
#pragma once

#include <cstdint>

namespace bypass::fastpath {

enum class Reason : std::uint8_t {
  kNone = 0,
  // The peer broke the protocol: its own connection ends.
  kBadRecord,     // a control record of no known type, or with a length or field that none has
  kBadState,      // a record or message that may not come now
  kBadEpoch,      // a path change that is not the next one
  kBadOffset,     // a stream offset that does not follow from what came before
  kBadCredit,     // a counter that claims more than was sent
  kRingOverrun,   // more placed than the ring has room for
  kBadSequence,   // a message was left out or came twice
  kBadImmediate,  // an operation that does not exist, or a length that it cannot have
  // The peer broke what a whole link rests on: its connections go on over TCP.
  kUnknownLane,     // a message for a lane that never was
  kMessageOverrun,  // more messages than receives are posted, or more returned than were sent
  // The link
  kLinkError,     // the mover failed: queue pair in error, port down, peer's process gone
  kPeerLinkDown,  // the peer says that its end failed
  // A lane was refused (LANE_NO)
  kNoMemory,
  kPolicy,
  // A link was not made (LINK_ACC, LINK_READY)
  kNoDevice,        // no device that can, or it has no more queue pairs
  kLinkVersion,     // the peer's set-up is another version's, or for another kind of link
  kLinkValue,       // a value that cannot be
  kForeignAddress,  // the peer's device has another address than its TCP
  kUnreachable,     // no way from device to device
  kUnproven,        // what came over it first was not what was to come
  kTooSlow,         // it was not up in time
  kElsewhere,       // the peer does not have our run directory, or we not the peer's: another host, or a container's
  kOtherUser,       // the peer is another user's process
  kNoSharedMemory,  // no socket, descriptor or memory for what two processes share
  // No link was asked for
  kNotOffered,        // no word of one from the peer in SYN or SYN-ACK
  kNotHere,           // we have no device for it
  kNotThere,          // the peer has spoken, and has none
  kBehindRouter,      // the peer is not of the port's own subnets, and no rule names it
  kNotOfferedBeyond,  // a rule does, and there was no word of one from the peer
  kOneFamily,         // both ends are connections of one stack
  // A link has no more lanes
  kLanesTaken,
};
inline constexpr Reason kLastReason = Reason::kLanesTaken;

const char* to_string(Reason reason);

}  // namespace bypass::fastpath
