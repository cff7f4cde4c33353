// What LINK_REQ, and a LINK_ACC that agrees, contain for links that are RC queue pairs, after the head (link_record.h).
//
//   gid:128 qpn:32 psn:32 key:32 mtu:8 0:8 window:16 address:64 size:64 nonce:64
//
// Keys and addresses travel nowhere else. Each value is checked before it is used.
// Tests: tests/fuzz/setup_records.cc, tests/verbs/rc/setup_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/setup/link_record.h"
#include "stack/address.h"

namespace bypass::fastpath {

/// One end of a queue pair, as the other end must know it.
struct RcEnd {
  IpAddress gid;              // RoCE v2: the address of its device
  std::uint64_t address = 0;  // of the link's memory, as the key addresses it
  std::uint64_t size = 0;     // of the link's memory, in bytes
  std::uint64_t nonce = 0;    // what the first message must write into that memory
  std::uint32_t qpn = 0, psn = 0;
  std::uint32_t key = 0;
  std::uint16_t window = 0;  // messages that this end takes before it returns credits
  std::uint8_t mtu = 0;      // ibv_mtu: 1 … 5, 256 to 4096 bytes
  friend bool operator==(const RcEnd&, const RcEnd&) = default;
};

inline constexpr std::size_t kRcEndBytes = 56;
inline constexpr std::size_t kRcBodyBytes = kLinkHeadBytes + kRcEndBytes;

/// Returns the bytes written; `room` holds kRcBodyBytes.
std::size_t encode(const LinkHead& head, const RcEnd& end, std::span<std::byte> room);
/// Reads what follows a head without a reason. Returns kLinkValue, kForeignAddress, or kNone if it was read. `peer`:
/// the only address that the other end may have.
[[nodiscard]] Reason decode(std::span<const std::byte> body, const IpAddress& peer, RcEnd& out);

}  // namespace bypass::fastpath
