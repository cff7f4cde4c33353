#include "fastpath/framed/control.h"

#include <algorithm>

#include "fastpath/framed/wire.h"

namespace bypass::fastpath {
namespace {

constexpr std::uint32_t kVariable = 0xffffffff;

/// The length of a type's body; kVariable if the header decides. False: there is no such type.
bool body_of(RecordType type, std::uint32_t& length) {
  switch (type) {
    case RecordType::kRevert:
      length = 0;
      return true;
    case RecordType::kLinkDown:
    case RecordType::kLaneClose:
      length = 4;
      return true;
    case RecordType::kCredit:
    case RecordType::kFin:
    case RecordType::kUrgent:
    case RecordType::kPing:
    case RecordType::kPong:
    case RecordType::kLaneNo:
      length = 8;
      return true;
    case RecordType::kCut:
    case RecordType::kResume:
    case RecordType::kRxState:
      length = 16;
      return true;
    case RecordType::kLaneOpen:
    case RecordType::kLaneOk:
      length = 24;
      return true;
    case RecordType::kData:
    case RecordType::kLinkHello:
    case RecordType::kLinkReq:
    case RecordType::kLinkAcc:
    case RecordType::kLinkReady:
      length = kVariable;
      return true;
  }
  return false;
}

bool length_is_legal(RecordType type, std::uint32_t length) {
  std::uint32_t expected = 0;
  if (!body_of(type, expected)) return false;
  if (expected != kVariable) return length == expected;
  return type == RecordType::kData ? length != 0 && length <= kMaxData : length <= kMaxLinkBody;
}

void put_body(const Record& r, std::byte* at) {
  switch (r.type) {
    case RecordType::kCredit:
    case RecordType::kFin:
    case RecordType::kUrgent:
    case RecordType::kPing:
    case RecordType::kPong:
      put64(at, r.value);
      break;
    case RecordType::kLinkDown:
    case RecordType::kLaneClose:
      put32(at, r.link);
      break;
    case RecordType::kLaneNo:
      put32(at, r.link);
      put32(at + 4, r.reason);
      break;
    case RecordType::kCut:
    case RecordType::kResume:
    case RecordType::kRxState:
      put32(at, r.link);
      put16(at + 4, r.lane);
      put16(at + 6, 0);
      put64(at + 8, r.value);
      break;
    case RecordType::kLaneOpen:
    case RecordType::kLaneOk:
      put32(at, r.link);
      put16(at + 4, r.address.lane);
      at[6] = std::byte{r.address.ring_log2};
      at[7] = std::byte{0};
      put64(at + 8, r.address.ring);
      put64(at + 16, r.address.credit);
      break;
    default:
      break;
  }
}

/// Fills `r` from a record's body. False: a field has a value that the protocol does not allow.
bool get_body(Record& r, const std::byte* at) {
  switch (r.type) {
    case RecordType::kCredit:
    case RecordType::kFin:
    case RecordType::kUrgent:
    case RecordType::kPing:
    case RecordType::kPong:
      r.value = get64(at);
      return true;
    case RecordType::kLinkDown:
    case RecordType::kLaneClose:
      r.link = get32(at);
      return true;
    case RecordType::kLaneNo:
      r.link = get32(at);
      r.reason = get32(at + 4);
      return true;
    case RecordType::kCut:
    case RecordType::kResume:
    case RecordType::kRxState:
      r.link = get32(at);
      r.lane = get16(at + 4);
      r.value = get64(at + 8);
      return true;
    case RecordType::kLaneOpen:
    case RecordType::kLaneOk:
      r.link = get32(at);
      r.address.lane = get16(at + 4);
      r.address.ring_log2 = std::to_integer<std::uint8_t>(at[6]);
      r.address.ring = get64(at + 8);
      r.address.credit = get64(at + 16);
      return r.address.ring_log2 >= kMinRingLog2 && r.address.ring_log2 <= kMaxRingLog2;
    default:
      return true;
  }
}

}  // namespace

std::uint32_t body_length(const Record& record) {
  std::uint32_t length = 0;
  return body_of(record.type, length) && length == kVariable ? record.length : length;
}

std::size_t encode(const Record& record, std::span<std::byte> room, std::span<const std::byte> link_body) {
  const std::uint32_t body = body_length(record);
  room[0] = std::byte{static_cast<std::uint8_t>(record.type)};
  room[1] = std::byte{0};
  room[2] = std::byte{record.epoch};
  room[3] = std::byte{0};
  put32(room.data() + 4, body);
  if (record.type == RecordType::kData) return kRecordHeader;
  put_body(record, room.data() + kRecordHeader);
  if (!link_body.empty()) std::memcpy(room.data() + kRecordHeader, link_body.data(), link_body.size());
  return kRecordHeader + body;
}

Decoder::Step Decoder::next(std::span<const std::byte> input) {
  Step step;
  if (mode_ == Mode::kBad) return bad(step);
  if (have_ == 0 && (data_left_ != 0 || mode_ == Mode::kRaw)) return take_data(input);
  if (!fill(input, kRecordHeader, step.taken)) return step;

  const auto type = static_cast<RecordType>(held_[0]);
  const std::uint32_t length = get32(held_.data() + 4);
  if (!length_is_legal(type, length)) return bad(step);
  if (type == RecordType::kData) {
    have_ = 0;
    data_left_ = length;
    Step data = take_data(input.subspan(step.taken));
    data.taken += step.taken;
    return data;
  }
  if (!fill(input, kRecordHeader + length, step.taken)) return step;
  return finish(step);
}

Decoder::Step Decoder::take_data(std::span<const std::byte> input) {
  if (input.empty()) return {};
  const bool raw = mode_ == Mode::kRaw;
  const std::size_t most = raw ? kMaxData : data_left_;
  const auto taken = static_cast<std::uint32_t>(std::min(input.size(), most));
  if (!raw) data_left_ -= taken;
  return {.event = raw ? Event::kRaw : Event::kData, .taken = taken, .data = taken};
}

/// Copies input until `upto` bytes are held. False: the input is too short.
bool Decoder::fill(std::span<const std::byte> input, std::size_t upto, std::size_t& taken) {
  if (have_ >= upto) return true;
  const std::size_t n = std::min(upto - have_, input.size() - taken);
  if (n != 0) std::memcpy(held_.data() + have_, input.data() + taken, n);
  have_ += static_cast<std::uint32_t>(n);
  taken += n;
  return have_ == upto;
}

Decoder::Step Decoder::finish(Step step) {
  Record& r = step.record;
  r.type = static_cast<RecordType>(held_[0]);
  r.epoch = std::to_integer<std::uint8_t>(held_[2]);
  body_ = have_ - static_cast<std::uint32_t>(kRecordHeader);
  have_ = 0;
  if (!get_body(r, held_.data() + kRecordHeader)) return bad(step);
  std::uint32_t fixed = 0;
  if (body_of(r.type, fixed) && fixed == kVariable) r.length = body_;
  if (r.type == RecordType::kRevert) mode_ = Mode::kRaw;
  step.event = Event::kRecord;
  return step;
}

Decoder::Step Decoder::bad(Step step) {
  mode_ = Mode::kBad;
  step.event = Event::kBad;
  return step;
}

}  // namespace bypass::fastpath
