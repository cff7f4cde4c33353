// What a lane's classes speak of: the rules of the protocol, where each direction is, and what one turn may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass::fastpath {

/// The protocol's rules that the model's test leaves out one by one, to show that each is needed and that it would
/// notice.
struct LaneRules {
  static constexpr bool kCountIsOfTheLane = true;  // RXSTATE counts since the lane was opened, not since the stream was
  static constexpr bool kForeignStateEndsLink =
      true;  // RXSTATE, LINKDOWN end the link also where this direction is not on it
  static constexpr bool kFinalCountIsFrozen = true;  // a message after RXSTATE does not count
  static constexpr bool kSaysBlocked = true;         // a writer without room says so
  static constexpr bool kFinIsRepeated = true;       // RESUME takes back a FIN that was not acknowledged
  static constexpr bool kKeepsUntilPlaced = true;    // I3
  static constexpr bool kRingBeforeTcp = true;       // bytes of the ring are read before those behind RESUME
  static constexpr bool kWaitsForDevice = true;      // the peer's word alone does not free what a device may send again
  static constexpr bool kBothSayTheirEnd = true;     // FIN, QUIESCE or RESET, also who has never cut to the lane
  static constexpr bool kNothingBehindTheEnd = true;  // no RESET behind an end and the answer to the peer's
  /// Bytes that the peer has not placed from which on it is far behind: Gather::kAhead.
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

/// What one turn may use: see LinkEnd.
struct LaneTurn {
  std::span<const std::byte> memory;  // the link's: the credit block is read from it
  ByteSource source;
  std::uint64_t most = 0;  // bytes
  bool may_send_data = true, may_send_control = true;
};

}  // namespace bypass::fastpath
