// What a lane's classes share: the rules of the protocol, the path of each direction, and the limits of one turn.
// Tests: tests/fastpath/model_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass::fastpath {

/// The protocol's rules. The model's test leaves them out one by one: this shows that each is needed, and that the test
/// notices.
struct LaneRules {
  // RXSTATE's count begins when the lane was opened, not when the stream began
  static constexpr bool kCountIsOfTheLane = true;
  static constexpr bool kForeignStateEndsLink =
      true;  // RXSTATE, LINKDOWN end the link also where this direction is not on it
  static constexpr bool kFinalCountIsFrozen = true;  // a message after RXSTATE does not count
  static constexpr bool kSaysBlocked = true;         // a writer without room says so
  static constexpr bool kFinIsRepeated = true;       // RESUME takes back a FIN that was not acknowledged
  static constexpr bool kKeepsUntilPlaced = true;    // I3
  static constexpr bool kRingBeforeTcp = true;       // bytes of the ring are read before those behind RESUME
  static constexpr bool kWaitsForDevice = true;      // the peer's word alone does not free what a device may send again
  // FIN, QUIESCE or RESET, also from an end that has never cut to the lane
  static constexpr bool kBothSayTheirEnd = true;
  static constexpr bool kNothingBehindTheEnd = true;  // no RESET after an end and the answer to the peer's end
  /// From so many bytes that the peer has not placed, it is far behind: Gather::kAhead.
  static constexpr std::uint64_t kAhead = 64U << 10;
};

/// A connection's send buffer: a ring of `capacity` bytes (a power of two), in which stream offset `origin` lies first.
struct ByteSource {
  const std::byte* block = nullptr;
  std::uint64_t origin = 0;
  std::uint64_t capacity = 0;
  /// The bytes [offset, offset + length): two parts where it wraps.
  void spans(std::uint64_t offset, std::uint64_t length, std::span<const std::byte> (&out)[2]) const;
};

enum class TxPath : std::uint8_t { kTcp, kLane, kQuiescing, kStopped };
enum class RxPath : std::uint8_t { kTcp, kLane, kBack };
enum class Attachment : std::uint8_t { kNone, kOffering, kOffered, kOpen };
enum class LaneLink : std::uint8_t { kUp, kFailed, kFinal };

struct LaneConfig {
  bool opens = false;                     // the end that offers lanes: TCP's client
  std::uint32_t tcp_window = 256U << 10;  // DATA bytes that a reader takes ahead of its program; both ends use the same
};

/// What one turn of a lane may use: see LinkEnd.
struct LaneTurn {
  std::span<const std::byte> memory;  // the link's memory: the credit block is read from it
  ByteSource source;
  std::uint64_t most = 0;  // bytes that one write may carry at most
  bool may_send_data = true, may_send_control = true;
};

}  // namespace bypass::fastpath
