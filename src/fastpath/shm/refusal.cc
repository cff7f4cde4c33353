#include "fastpath/shm/refusal.h"

namespace bypass::fastpath::shm {

const char* to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kNotConnected:
      return "no established TCP connection";
    case Refusal::kSelfConnected:
      return "connected to itself";
    case Refusal::kNoResources:
      return "no descriptor or memory left";
    case Refusal::kTimedOut:
      return "nobody came: the other end is not on libbypass, runs as another user or with another BYPASS_RUN_DIR, "
             "BYPASS_LOCAL or BYPASS_LOCAL_AFTER, or has made fewer calls";
    case Refusal::kTooManyStrangers:
      return "too many processes came that were not the other end";
    case Refusal::kOtherUser:
      return "the other end is another user's process";
    case Refusal::kPeerGone:
      return "the other end has gone";
    case Refusal::kBadMessage:
      return "the other end sent a bad message";
    case Refusal::kOtherVersion:
      return "the other end has another version of libbypass";
    case Refusal::kNoProof:
      return "no proof of the connection";
    case Refusal::kTooManyDescriptors:
      return "too many descriptors";
    case Refusal::kWrongConnection:
      return "the other end named a socket of another connection";
    case Refusal::kOtherNamespace:
      return "the other end is in another network namespace";
    case Refusal::kNoSocketTable:
      return "the kernel's table of sockets cannot be read";
    case Refusal::kNotSealed:
      return "memory that is not sealed";
    case Refusal::kNotMemory:
      return "no memory file";
    case Refusal::kBadSize:
      return "memory of a bad size";
    case Refusal::kBadHeader:
      return "memory with a bad header";
    case Refusal::kNotMapped:
      return "memory that cannot be mapped";
    case Refusal::kOtherRights:
      return "the other end has rights that this process lacks, or is in another pid namespace";
    case Refusal::kIndexAhead:
      return "an index beyond the ring";
    case Refusal::kIndexBackwards:
      return "an index that went back";
  }
  return "unknown";
}

}  // namespace bypass::fastpath::shm
