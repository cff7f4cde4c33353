// Sequences of socket calls, made from a seed. The same seed gives the same sequence in each process, so processes name
// a step by its index alone.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace random_calls {

/// Who makes a call. The server process has two threads and at times a forked child; the client is a process of its
/// own.
enum class Actor : std::uint8_t { kServer, kThread, kClient, kChild };
inline constexpr std::size_t kActors = 4;

enum class Op : std::uint8_t {
  kSocket,
  kBind,
  kListen,
  kConnect,
  kAccept,
  kSend,
  kReceive,
  kSendTo,
  kReceiveFrom,
  kSendMessage,
  kReceiveMessage,
  kWrite,
  kRead,
  kShutDown,
  kClose,
  kDuplicate,
  kDuplicateTo,
  kGetFlags,
  kName,
  kPeerName,
  kGetOption,
  kSetOption,
  kControl,
  kSelect,
  kEpollCreate,
  kEpollControl,
  kEpollWait,
  kFork,
  kEndChild,
  kKillChild,
  kExecute,
  kPass,  // between the server's process and its child (SCM_RIGHTS)
};

inline constexpr unsigned kSlots = 8;  // descriptors that a process names in its steps
inline constexpr unsigned kPorts = 4;  // of a sequence: the first two are bound by the server, the others by the client

/// What `other`, `amount` and `choice` mean depends on the operation (calls.cc).
struct Step {
  Actor actor{};
  Op op{};
  std::uint8_t slot = 0, other = 0;
  std::uint16_t amount = 0;
  std::uint32_t choice = 0;
};

/// Bytes that are held back (TCP_CORK, MSG_MORE) cost a sequence 200 ms: one in 32 may do that.
[[nodiscard]] constexpr bool may_hold_back(std::uint64_t seed) {
  return seed % 32 == 3;
}

/// Nagle's algorithm is on. Then an acknowledgement may be waited for, and one sequence in eight has it so.
[[nodiscard]] constexpr bool waits_for_acknowledgements(std::uint64_t seed) {
  return seed % 8 == 0;
}

/// `length`: how many random steps follow those that open the first connection.
std::vector<Step> make_sequence(std::uint64_t seed, unsigned length);

}  // namespace random_calls
