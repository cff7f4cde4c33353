#include "fastpath/reason.h"

namespace bypass::fastpath {

const char* to_string(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "none";
    case Reason::kBadRecord:
      return "bad control record";
    case Reason::kBadState:
      return "record out of turn";
    case Reason::kBadEpoch:
      return "path change out of turn";
    case Reason::kBadOffset:
      return "bad stream offset";
    case Reason::kBadCredit:
      return "credit for bytes never sent";
    case Reason::kRingOverrun:
      return "ring overrun";
    case Reason::kBadSequence:
      return "message out of sequence";
    case Reason::kBadImmediate:
      return "bad immediate";
    case Reason::kUnknownLane:
      return "message for an unknown lane";
    case Reason::kMessageOverrun:
      return "too many messages";
    case Reason::kLinkError:
      return "link failed";
    case Reason::kPeerLinkDown:
      return "link failed at the peer";
    case Reason::kNoMemory:
      return "no memory for it (BYPASS_MEMORY)";
    case Reason::kPolicy:
      return "refused by a rule";
    case Reason::kNoDevice:
      return "no device for it";
    case Reason::kLinkVersion:
      return "link of another version";
    case Reason::kLinkValue:
      return "bad value in a link's set-up";
    case Reason::kForeignAddress:
      return "RDMA device has another address";
    case Reason::kUnreachable:
      return "peer's RDMA device not reached by UDP port 4791, in packets of the port's size (BYPASS_MTU)";
    case Reason::kUnproven:
      return "the first bytes over the link were not the expected ones";
    case Reason::kTooSlow:
      return "link not up in time";
    case Reason::kElsewhere:
      return "peer is on another host, or has another run directory";
    case Reason::kOtherUser:
      return "peer is another user's process";
    case Reason::kNoSharedMemory:
      return "no memory to share with the peer";
    case Reason::kNotOffered:
      return "the peer offers no faster path";
    case Reason::kNotHere:
      return "there is no device for it here";
    case Reason::kNotThere:
      return "the peer has no device for it, or may not use it (BYPASS_RDMA, BYPASS_LOCAL)";
    case Reason::kBehindRouter:
      return "behind a router: only peers of the port's own subnets are asked, and those that an rdma rule names "
             "(BYPASS_RULES)";
    case Reason::kNotOfferedBeyond:
      return "behind a router: the peer's rules have to name this end, too (BYPASS_RULES, rdma)";
    case Reason::kOneFamily:
      return "both ends belong to this process or its family, whose own stack carries the connection";
    case Reason::kLanesTaken:
      return "one end has no lane of the link left, or no memory for one";
  }
  return "unknown";
}

}  // namespace bypass::fastpath
