// The framed TCP stream: what one direction of a connection carries once both ends are accelerated.
//
// It is a sequence of records, each an 8-byte header {type, flags, epoch, 0, length:32} and a body; integers are
// big-endian. DATA's body is the program's bytes; the rest is control, ordered with them and as reliable as TCP. A
// stream offset counts the program's bytes of a direction since the connection began, whichever path carries them.
//
//   DATA      bytes
//   CREDIT    count:64                       DATA bytes that the reader's program has taken so far
//   CUT       link:32 lane:16 0:16 offset:64 bytes from `offset` on travel on the lane (the reader's number for it)
//   RESUME    link:32 0:32 offset:64         bytes from `offset` on are DATA again
//   RXSTATE   link:32 lane:16 0:16 count:64  the link is dead here; `count` bytes were placed in this lane's ring, and
//                                            no more will be. The count begins when the lane was opened: the sender
//                                            may not know yet where the CUT lies
//   LINKDOWN  link:32                        the link has failed here; RXSTATE follows once its count is final
//   LANE_OPEN link:32 lane:16 log2:8 0:8 ring:64 credit:64
//                                            a lane on a link: the sender's number for it, where its ring lies in the
//                                            link's memory and how large it is, where its credit block lies
//   LANE_OK   as LANE_OPEN                   the answer
//   LANE_NO   link:32 reason:32              the other answer
//   LANE_CLOSE link:32                       no CUT to this lane will come; let the other direction leave it, too
//   FIN       offset:64                      the direction ends there
//   URGENT    offset:64                      the byte in front of `offset` is urgent
//   REVERT                                   the last record: what follows is the program's bytes as they are
//   PING PONG token:64
//   LINK_HELLO LINK_REQ LINK_ACC LINK_READY  the set-up of a link; what the body says is the mover's affair
//
// CUT and RESUME carry the direction's epoch, which each of them raises by one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bypass::fastpath {

enum class RecordType : std::uint8_t {
  kData = 1,
  kCredit,
  kCut,
  kResume,
  kRxState,
  kLinkDown,
  kLaneOpen,
  kLaneOk,
  kLaneNo,
  kLaneClose,
  kFin,
  kUrgent,
  kRevert,
  kPing,
  kPong,
  kLinkHello,
  kLinkReq,
  kLinkAcc,
  kLinkReady,
};

inline constexpr std::size_t kRecordHeader = 8;
inline constexpr std::uint32_t kMaxData = 64U << 10;  // bytes of one DATA record at most
inline constexpr std::uint32_t kMaxLinkBody = 256;    // bytes of the body of one LINK_* record at most
inline constexpr std::size_t kMaxControl = kRecordHeader + kMaxLinkBody;
inline constexpr std::uint8_t kMinRingLog2 = 12, kMaxRingLog2 = 25;

/// Where an end has put a lane's memory, as LANE_OPEN and LANE_OK report it.
struct LaneAddress {
  std::uint64_t ring = 0;    // offset in the link's memory of the ring's first byte
  std::uint64_t credit = 0;  // the same for the credit block
  std::uint16_t lane = 0;    // the number that messages to it carry
  std::uint8_t ring_log2 = 0;
  std::uint8_t reserved[5] = {};  // no padding: lanes are compared byte by byte in tests
  friend bool operator==(const LaneAddress&, const LaneAddress&) = default;
};

/// One record. The type decides which fields have a meaning (see above).
struct Record {
  RecordType type = RecordType::kData;
  std::uint8_t epoch = 0;
  std::uint16_t lane = 0;
  std::uint32_t length = 0;  // bytes of the body of DATA and LINK_*
  std::uint32_t link = 0;
  std::uint32_t reason = 0;
  std::uint64_t value = 0;  // offset, count or token; for DATA that is to be sent, the stream offset of its first byte
  LaneAddress address{};
  friend bool operator==(const Record&, const Record&) = default;
};

/// Bytes of a record's body: for DATA and LINK_*, record.length.
[[nodiscard]] std::uint32_t body_length(const Record& record);

/// Writes a record. For DATA it writes the header alone; for LINK_* it adds `link_body` (record.length bytes). `room`
/// holds kMaxControl. Returns how many bytes were written.
std::size_t encode(const Record& record, std::span<std::byte> room, std::span<const std::byte> link_body = {});

/// Splits the stream into records, in whatever pieces the stream comes. Holds at most one control record; DATA's bytes
/// are never copied. Whatever the peer sends, a length is checked before it is used.
class Decoder {
 public:
  enum class Event : std::uint8_t {
    kMore,    // all of the input is taken, and no record is complete
    kRecord,  // `record` is complete; a LINK_* record's body is link_body() until the next call
    kData,    // the next `data` bytes of the stream, which are the last ones taken, are the program's
    kRaw,     // as kData, but after REVERT
    kBad,     // this is no framed stream; nothing more is taken
  };
  struct Step {
    Event event = Event::kMore;
    std::size_t taken = 0;  // how many bytes of the input are done with
    std::uint32_t data = 0;
    Record record{};
  };

  /// Takes the input's beginning, up to the first event. Call it again with the rest of the input.
  Step next(std::span<const std::byte> input);
  [[nodiscard]] std::span<const std::byte> link_body() const { return std::span(held_).subspan(kRecordHeader, body_); }
  /// True in the middle of a record: a stream that ends here was cut off.
  [[nodiscard]] bool mid_record() const { return have_ != 0 || data_left_ != 0; }

 private:
  enum class Mode : std::uint8_t { kRecords, kRaw, kBad };
  [[nodiscard]] Step take_data(std::span<const std::byte> input);
  [[nodiscard]] bool fill(std::span<const std::byte> input, std::size_t upto, std::size_t& taken);
  [[nodiscard]] Step finish(Step step);
  Step bad(Step step);

  std::array<std::byte, kMaxControl> held_{};
  std::uint32_t have_ = 0;  // bytes of held_ that are filled
  std::uint32_t data_left_ = 0;
  std::uint32_t body_ = 0;
  Mode mode_ = Mode::kRecords;
};

}  // namespace bypass::fastpath
