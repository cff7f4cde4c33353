// The immediate of a write: what a message on a link says, in 32 bits.
//
//   31..28 operation   27..16 the lane's message number, its low 12 bits   15..0 lane, the receiver's number
//
// A message's bytes, if any, are those of its write; they follow the last ones in the lane's ring.
#pragma once

#include <cstdint>

namespace bypass::fastpath {

enum class Op : std::uint8_t {
  kNone = 0,
  kData = 1,     // bytes
  kDataBlocked,  // bytes or none; the sender waits for room in the ring, or in its own buffer
  kUrgent,       // bytes, the last of which is urgent
  kCredit,       // the credit block was written
  kFin,          // this direction ends here
  kReset,        // the connection ends here
  kQuiesce,      // nothing more is written into this ring
  // answers FIN, RESET and QUIESCE: everything was placed, and nothing more is written into that credit block
  kQuiesceAck,
  // Messages about the link itself; they are not counted against its window
  kLinkBlocked,  // the sender is out of message credits
  kLinkCredit,   // the link's block was written
  kLinkPing,
  kLinkPong,
};
inline constexpr std::uint8_t kLastOp = static_cast<std::uint8_t>(Op::kLinkPong);

inline constexpr std::uint16_t kSequenceMask = 0xfff;
inline constexpr std::uint16_t kNoLane = 0xffff;  // in messages of the link itself

struct Message {
  Op op = Op::kData;
  std::uint16_t sequence = 0;
  std::uint16_t lane = kNoLane;
};

constexpr std::uint32_t to_immediate(const Message& m) {
  return static_cast<std::uint32_t>(m.op) << 28 | static_cast<std::uint32_t>(m.sequence & kSequenceMask) << 16 | m.lane;
}
constexpr Message to_message(std::uint32_t immediate) {
  return {static_cast<Op>(immediate >> 28), static_cast<std::uint16_t>(immediate >> 16 & kSequenceMask),
          static_cast<std::uint16_t>(immediate)};
}
constexpr bool is_known(Op op) {
  return op >= Op::kData && static_cast<std::uint8_t>(op) <= kLastOp;
}
constexpr bool is_of_link(Op op) {
  return op >= Op::kLinkBlocked;
}
constexpr bool carries_bytes(Op op) {
  return op <= Op::kUrgent;
}

}  // namespace bypass::fastpath
