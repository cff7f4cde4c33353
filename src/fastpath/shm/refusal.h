// Why two processes do not share memory, or no longer do. The names are what `bypass why` and counters show.
#pragma once

#include <cstdint>
#include <utility>

namespace bypass::fastpath::shm {

/// Part of the message format: numbers stay, new ones are appended.
enum class Refusal : std::uint8_t {
  kNone = 0,
  // Finding each other
  kNotConnected = 1,      // the descriptor is no established TCP connection
  kSelfConnected = 2,     // both ends are one socket
  kNoResources = 3,       // no descriptor, memory, or room below RLIMIT_FSIZE
  kTimedOut = 4,          // the other end did not come before the deadline
  kTooManyStrangers = 5,  // too many came to our name that were not the other end
  // Proof
  kOtherUser = 6,            // SO_PEERCRED names another user
  kPeerGone = 7,             // the peer closed the channel
  kBadMessage = 8,           // a message of the wrong length, with a field out of range, or at the wrong time
  kOtherVersion = 9,         // another version of libbypass
  kNoProof = 10,             // no descriptor number or descriptor came where one is required
  kTooManyDescriptors = 11,  // a descriptor came where none is allowed
  kWrongConnection = 12,     // the number names another socket than this connection's other end
  kOtherNamespace = 13,      // the socket is in another network namespace
  kNoSocketTable = 14,       // the kernel's table of sockets cannot be asked here (NETLINK_SOCK_DIAG)
  // The segment
  kNotSealed = 15,  // the memfd's size may still change
  kNotMemory = 16,  // the file is no memfd of ordinary pages
  kBadSize = 17,    // the size of the file, or of a ring
  kBadHeader = 18,
  kNotMapped = 19,  // mmap failed
  // Its rings
  kIndexAhead = 20,      // the peer's index counts more bytes than the ring holds
  kIndexBackwards = 21,  // the peer's index went back
  // Proof, again
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
