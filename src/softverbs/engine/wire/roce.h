// RoCE v2 as it lies on the wire: InfiniBand transport headers (specification, chapter 9) over UDP port 4791 (annex
// A17).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "softverbs/engine/wire/icrc.h"
#include "softverbs/engine/wire/psn.h"
#include "stack/address.h"
#include "stack/copy.h"
#include "stack/frame/packet.h"
#include "stack/frame/wire.h"

namespace bypass::rdma {

inline constexpr std::uint16_t kRocePort = 4791;
inline constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
inline constexpr std::uint8_t kProtocolIcmpv6 = 58;
inline constexpr std::uint16_t kDefaultPkey = 0xffff;
inline constexpr std::uint32_t kMulticastQpn = 0xffffff;
inline constexpr std::uint32_t kQpnMask = 0xffffff;
inline constexpr std::size_t kIcrcBytes = 4;
inline constexpr std::size_t kGrhBytes = 40;  // before a received datagram
/// Everything around a payload, for which the wire's MTU must have room: 84 bytes as rxe counts, and an XRC header.
inline constexpr std::uint32_t kMaxOverhead = 88;

struct Ipv6 {  // RFC 8200 §3
  wire::Be32 version_class_flow;
  wire::Be16 payload_len;
  std::uint8_t next_header, hop_limit;
  std::array<std::uint8_t, 16> source, destination;
};
static_assert(sizeof(Ipv6) == 40);

class Be64 {
 public:
  operator std::uint64_t() const {  // NOLINT: reads like the integer it is
    return std::uint64_t{high_} << 32 | low_;
  }
  Be64& operator=(std::uint64_t v) {
    high_ = static_cast<std::uint32_t>(v >> 32);
    low_ = static_cast<std::uint32_t>(v);
    return *this;
  }

 private:
  wire::Be32 high_, low_;
};

struct Bth {  // base transport header, 9.2
  std::uint8_t opcode;
  std::uint8_t flags;  // solicited event, migration, pad count, transport version
  wire::Be16 pkey;
  wire::Be32 qpn;  // the first byte is FECN, BECN and reserved
  wire::Be32 psn;  // the first byte is the acknowledge request, kBthOurs and the round
};
static_assert(sizeof(Bth) == 12);
inline constexpr std::uint8_t kBthSolicited = 0x80;
inline constexpr std::uint8_t kBthVersion = 0x0f;
inline constexpr std::uint32_t kBthAckRequest = 0x80000000;
/// These use the seven reserved bits beside it, which others send as 0 and ignore. They mark an end of ours; the lowest
/// two bits are the round of repair in which a request was sent. An answer repeats the round of its request.
inline constexpr std::uint32_t kBthMark = 0x7c000000;
inline constexpr std::uint32_t kBthOurs = 0x28000000;
inline constexpr unsigned kBthRoundShift = 24;
inline constexpr std::uint8_t kRounds = 3;  // a mask

/// The later of two rounds, as far as two bits can tell.
constexpr bool later_round(std::uint8_t a, std::uint8_t b) {
  const unsigned ahead = static_cast<unsigned>(a - b) & kRounds;
  return ahead == 1 || ahead == 2;
}

struct Deth {  // datagrams, 9.3.1
  wire::Be32 qkey, source_qpn;
};
struct Reth {  // RDMA, 9.3.3
  Be64 address;
  wire::Be32 rkey, length;
};
struct AtomicEth {  // 9.3.4
  Be64 address;
  wire::Be32 rkey;
  Be64 swap_add, compare;
};
struct Aeth {  // acknowledgement, 9.3.5: 8 bits of syndrome, 24 of message sequence number
  wire::Be32 syndrome_msn;
};
struct Xrceth {  // annex A14: in each request of the XRC service; the first byte is reserved
  wire::Be32 srqn;
};
static_assert(sizeof(Xrceth) == 4 && sizeof(Deth) == 8 && sizeof(Reth) == 16 && sizeof(AtomicEth) == 28 &&
              sizeof(Aeth) == 4);

// Syndromes: the upper three bits say the kind.
enum : std::uint8_t {
  kAckUnlimited = 0x1f,  // no end-to-end credits
  kAckKindMask = 0xe0,
  kAckKind = 0x00,
  kRnrKind = 0x20,
  kNakKind = 0x60,
  kNakSequence = 0x60,
  kNakInvalidRequest = 0x61,
  kNakAccess = 0x62,
  kNakOperation = 0x63,
  kNakInvalidRdRequest = 0x64,
};

/// Operations: the lower five bits of an opcode. The upper three are the service.
enum class Op : std::uint8_t {
  kSendFirst,
  kSendMiddle,
  kSendLast,
  kSendLastImm,
  kSendOnly,
  kSendOnlyImm,
  kWriteFirst,
  kWriteMiddle,
  kWriteLast,
  kWriteLastImm,
  kWriteOnly,
  kWriteOnlyImm,
  kReadRequest,
  kReadFirst,
  kReadMiddle,
  kReadLast,
  kReadOnly,
  kAcknowledge,
  kAtomicAcknowledge,
  kCompareSwap,
  kFetchAdd,
  kSendLastInv = 22,
  kSendOnlyInv,
};
inline constexpr std::uint8_t kServiceRc = 0x00, kServiceUc = 0x20, kServiceUd = 0x60, kServiceXrc = 0xa0;
inline constexpr std::uint8_t kServiceMask = 0xe0;

enum OpTrait : std::uint16_t {
  kOpValid = 1 << 0,
  kOpSend = 1 << 1,
  kOpWrite = 1 << 2,
  kOpAtomic = 1 << 3,
  kOpResponse = 1 << 4,
  kOpFirst = 1 << 5,  // a message begins
  kOpLast = 1 << 6,   // … ends
  kOpImm = 1 << 7,
  kOpReth = 1 << 8,
  kOpAeth = 1 << 9,
  kOpPayload = 1 << 10,
  kOpInv = 1 << 11,  // the receiver invalidates a key
};

constexpr std::uint16_t traits(Op op) {
  constexpr std::uint16_t send = kOpValid | kOpSend | kOpPayload, write = kOpValid | kOpWrite | kOpPayload;
  constexpr std::uint16_t read = kOpValid | kOpResponse | kOpPayload;
  constexpr std::array<std::uint16_t, 32> table = {
      send | kOpFirst,
      send,
      send | kOpLast,
      send | kOpLast | kOpImm,
      send | kOpFirst | kOpLast,
      send | kOpFirst | kOpLast | kOpImm,
      write | kOpFirst | kOpReth,
      write,
      write | kOpLast,
      write | kOpLast | kOpImm,
      write | kOpFirst | kOpLast | kOpReth,
      write | kOpFirst | kOpLast | kOpReth | kOpImm,
      kOpValid | kOpFirst | kOpLast | kOpReth,
      read | kOpFirst | kOpAeth,
      read,
      read | kOpLast | kOpAeth,
      read | kOpFirst | kOpLast | kOpAeth,
      kOpValid | kOpResponse | kOpAeth,
      kOpValid | kOpResponse | kOpAeth,
      kOpValid | kOpFirst | kOpLast | kOpAtomic,
      kOpValid | kOpFirst | kOpLast | kOpAtomic,
      0,
      send | kOpLast | kOpInv,
      send | kOpFirst | kOpLast | kOpInv,
  };
  return table[static_cast<std::size_t>(op) & 31];
}

/// Bytes between the base transport header and the payload, without the datagram and XRC headers.
constexpr std::size_t extension_bytes(Op op) {
  const std::uint16_t t = traits(op);
  std::size_t bytes = 0;
  if ((t & kOpReth) != 0) bytes += sizeof(Reth);
  if ((t & kOpAtomic) != 0) bytes += sizeof(AtomicEth);
  if ((t & kOpAeth) != 0) bytes += sizeof(Aeth);
  if (op == Op::kAtomicAcknowledge) bytes += sizeof(Be64);
  if ((t & (kOpImm | kOpInv)) != 0) bytes += sizeof(wire::Be32);
  return bytes;
}

/// A received RoCE packet. Its headers' places and lengths, and its ICRC, were checked.
struct RocePacket {
  Packet* frame;
  IpAddress source, destination;
  std::uint8_t service;
  Op op;
  std::uint16_t traits;
  bool solicited, ack_request, ours;
  std::uint8_t round;  // of ours
  std::uint32_t qpn;
  std::uint32_t srqn;  // of an XRC request
  Psn psn;
  std::uint16_t ip;         // offset of the IP header
  std::uint16_t extension;  // offset of what follows the base transport header, and the XRC header if there is one
  std::uint16_t payload;    // offset
  std::uint32_t payload_len;

  template <typename Header>
  [[nodiscard]] const Header& at(std::size_t offset) const {
    return wire::at<Header>(*frame, offset);
  }
  /// The immediate, which is the last extension, in wire order.
  [[nodiscard]] std::uint32_t imm() const {
    std::uint32_t v;
    std::memcpy(&v, frame->data + payload - sizeof v, sizeof v);
    return v;
  }
  /// The key to invalidate, which lies there instead.
  [[nodiscard]] std::uint32_t invalidated() const { return at<wire::Be32>(payload - sizeof(wire::Be32)); }
};

/// Reads a frame's bytes over its segments, from an offset on.
class FrameReader {
 public:
  FrameReader(const Packet& head, std::size_t offset) : segment_(&head), offset_(offset) { skip(); }
  /// Copies `len` bytes; the caller has checked that the frame has them.
  void copy(void* to, std::size_t len) {
    auto* out = static_cast<std::byte*>(to);
    while (len != 0) {
      const std::size_t n = std::min(len, segment_->len - offset_);
      copy_bytes(out, segment_->data + offset_, n);
      out += n;
      len -= n;
      advance(n);
    }
  }
  void advance(std::size_t len) {
    offset_ += len;
    skip();
  }

 private:
  void skip() {
    while (segment_->next_segment != nullptr && offset_ >= segment_->len) {
      offset_ -= segment_->len;
      segment_ = segment_->next_segment;
    }
  }
  const Packet* segment_;
  std::size_t offset_;
};

}  // namespace bypass::rdma
