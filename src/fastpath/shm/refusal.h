// Refusal: why two processes do not share memory, or no longer share it. `bypass why` and the counters show the text of
// to_string().
#pragma once

#include <cstdint>
#include <utility>

namespace bypass::fastpath::shm {

/// The numbers are part of the message format. They never change, and new ones are added at the end.
enum class Refusal : std::uint8_t {
  kNone = 0,
  // The two ends did not find each other.
  kNotConnected = 1,      // the descriptor is not an established TCP connection
  kSelfConnected = 2,     // both ends of the connection are one socket
  kNoResources = 3,       // there is no descriptor, no memory, or no room below RLIMIT_FSIZE
  kTimedOut = 4,          // the other end did not come before the deadline
  kTooManyStrangers = 5,  // too many processes connected to this end's name that were not the other end
  // The other end did not prove that it is the other end.
  kOtherUser = 6,            // SO_PEERCRED names another user
  kPeerGone = 7,             // the peer closed the channel
  kBadMessage = 8,           // a message had a wrong length, had a field out of range, or came at the wrong time
  kOtherVersion = 9,         // the peer has another version of libbypass
  kNoProof = 10,             // a message came without the descriptor, or the descriptor's number, that it must have
  kTooManyDescriptors = 11,  // a descriptor came where none is allowed
  kWrongConnection = 12,     // the peer's descriptor number names a socket that is not this connection's other end
  kOtherNamespace = 13,      // that socket is in another network namespace
  kNoSocketTable = 14,       // the kernel's table of sockets cannot be read here (NETLINK_SOCK_DIAG)
  // The memory that the peer sent is not usable.
  kNotSealed = 15,  // the memfd's size may still change
  kNotMemory = 16,  // the file is not a memfd of ordinary pages
  kBadSize = 17,    // the file, or a ring in it, has a wrong size
  kBadHeader = 18,  // the header at its beginning has a wrong value
  kNotMapped = 19,  // mmap failed
  // The peer broke the rules of a ring.
  kIndexAhead = 20,      // the peer's index counts more bytes than the ring holds
  kIndexBackwards = 21,  // the peer's index went back
  // Proof, a later addition
  kOtherRights = 22,  // this process may not look at the peer's descriptors (ptrace(2) forbids it)
};
inline constexpr std::uint8_t kMostRefusal = 22;

const char* to_string(Refusal refusal);

/// A value, or why there is no value.
template <typename T>
struct [[nodiscard]] Outcome {
  T value{};
  Refusal refusal = Refusal::kNone;

  Outcome(T v) : value(std::move(v)) {}   // NOLINT: implicit by design
  Outcome(Refusal why) : refusal(why) {}  // NOLINT: implicit by design
  [[nodiscard]] bool ok() const { return refusal == Refusal::kNone; }
};

}  // namespace bypass::fastpath::shm
