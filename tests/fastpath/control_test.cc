// The framed stream's records: a record that is written is read again, in any pieces. A record that cannot be is
// refused at its header.
#include "fastpath/framed/control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backends/sim/sim_wire.h"
#include "fastpath/setup/sha256.h"

namespace bypass::fastpath {
namespace {

using Bytes = std::vector<std::byte>;
using Event = Decoder::Event;

Bytes bytes_of(const char* text) {
  const auto* at = reinterpret_cast<const std::byte*>(text);
  return {at, at + std::strlen(text)};
}

void append(Bytes& stream, const Record& record, const Bytes& body = {}) {
  std::array<std::byte, kMaxControl> room;
  const bool is_data = record.type == RecordType::kData;
  const std::size_t n = encode(record, room, is_data ? Bytes{} : body);
  stream.insert(stream.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(n));
  if (is_data) stream.insert(stream.end(), body.begin(), body.end());
}

/// What a decoder reads from a stream that comes in pieces.
struct Heard {
  std::vector<Record> records;
  std::vector<Bytes> link_bodies;
  Bytes data, raw;
  bool bad = false;

  void hear(Decoder& decoder, std::span<const std::byte> piece) {
    for (;;) {
      const Decoder::Step step = decoder.next(piece);
      const auto taken = piece.first(step.taken);
      if (step.event == Event::kBad) bad = true;
      if (step.event == Event::kRecord) {
        records.push_back(step.record);
        const auto body = decoder.link_body();
        if (step.record.length != 0) link_bodies.emplace_back(body.begin(), body.end());
      }
      const auto last = taken.last(step.data);
      if (step.event == Event::kData) data.insert(data.end(), last.begin(), last.end());
      if (step.event == Event::kRaw) raw.insert(raw.end(), last.begin(), last.end());
      piece = piece.subspan(step.taken);
      if (step.event == Event::kMore || step.event == Event::kBad) return;
    }
  }
};

const std::vector<Record>& one_of_each() {
  static const std::vector<Record> records = {
      {.type = RecordType::kCredit, .value = 1ULL << 40},
      {.type = RecordType::kCut, .epoch = 7, .lane = 3, .link = 0xdeadbeef, .value = 0x0123456789abcdef},
      {.type = RecordType::kResume, .epoch = 8, .link = 5, .value = ~0ULL},
      {.type = RecordType::kRxState, .lane = 65535, .link = 5, .value = 99},
      {.type = RecordType::kLinkDown, .link = 6},
      {.type = RecordType::kLaneOpen,
       .link = 9,
       .address = {.ring = 1ULL << 33, .credit = 64, .lane = 12, .ring_log2 = 16}},
      {.type = RecordType::kLaneOk, .link = 9, .address = {.ring = 4096, .credit = 128, .lane = 1, .ring_log2 = 25}},
      {.type = RecordType::kLaneNo, .link = 9, .reason = 4},
      {.type = RecordType::kLaneClose, .link = 9},
      {.type = RecordType::kFin, .value = 77},
      {.type = RecordType::kUrgent, .value = 78},
      {.type = RecordType::kPing, .value = 1},
      {.type = RecordType::kPong, .value = 2},
      {.type = RecordType::kLinkReq, .length = 5},
  };
  return records;
}

Bytes stream_of_all() {
  Bytes stream;
  append(stream, {.type = RecordType::kData, .length = 5}, bytes_of("hello"));
  for (const Record& record : one_of_each()) append(stream, record, Bytes(record.length, std::byte{0x5a}));
  append(stream, {.type = RecordType::kData, .length = 6}, bytes_of(" world"));
  return stream;
}

void expect_all(const Heard& heard) {
  EXPECT_FALSE(heard.bad);
  EXPECT_EQ(heard.records, one_of_each());
  EXPECT_EQ(heard.data, bytes_of("hello world"));
  ASSERT_EQ(heard.link_bodies.size(), 1U);
  EXPECT_EQ(heard.link_bodies[0], Bytes(5, std::byte{0x5a}));
}

TEST(Control, AnyRecord_ComesOutAsItWentIn) {
  Decoder decoder;
  Heard heard;
  heard.hear(decoder, stream_of_all());
  expect_all(heard);
  EXPECT_FALSE(decoder.mid_record());
}

TEST(Control, SplitAnywhere_MakesNoDifference) {
  const Bytes stream = stream_of_all();
  for (std::size_t piece = 1; piece < stream.size(); piece++) {
    Decoder decoder;
    Heard heard;
    for (std::size_t at = 0; at < stream.size(); at += piece)
      heard.hear(decoder, std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
    expect_all(heard);
  }
}

TEST(Control, CutOff_IsNoticed) {
  const Bytes stream = stream_of_all();
  Decoder decoder;
  Heard heard;
  heard.hear(decoder, std::span(stream).first(10));
  EXPECT_TRUE(decoder.mid_record()) << "in a body of data";
  heard.hear(decoder, std::span(stream).subspan(10, 6));
  EXPECT_TRUE(decoder.mid_record()) << "in a header";
}

TEST(Control, Revert_TheRestIsTheProgramsBytes) {
  Bytes stream;
  append(stream, {.type = RecordType::kData, .length = 2}, bytes_of("ab"));
  append(stream, {.type = RecordType::kRevert});
  const Bytes plain = bytes_of("anything, also what looks like no record");
  stream.insert(stream.end(), plain.begin(), plain.end());
  Decoder decoder;
  Heard heard;
  heard.hear(decoder, stream);
  EXPECT_EQ(heard.data, bytes_of("ab"));
  EXPECT_EQ(heard.raw, plain);
  EXPECT_FALSE(heard.bad);
}

struct BadHeader {
  const char* why;
  std::uint8_t type;
  std::uint32_t length;
};

TEST(Control, LengthThatNoRecordHas_IsRefusedAtTheHeader) {
  const auto type = [](RecordType t) { return static_cast<std::uint8_t>(t); };
  const std::vector<BadHeader> headers = {
      {"no such type", 0, 0},
      {"no such type", 20, 8},
      {"no such type", 255, 8},
      {"data of no bytes", type(RecordType::kData), 0},
      {"too much data", type(RecordType::kData), kMaxData + 1},
      {"all the data there is", type(RecordType::kData), 0xffffffff},
      {"too short", type(RecordType::kCut), 15},
      {"too long", type(RecordType::kCut), 17},
      {"too long", type(RecordType::kRevert), 1},
      {"too long", type(RecordType::kLinkReq), kMaxLinkBody + 1},
      {"a length of 2^31", type(RecordType::kRxState), 0x80000000},
  };
  for (const BadHeader& bad : headers) {
    SCOPED_TRACE(bad.why);
    Bytes stream(kRecordHeader);
    stream[0] = std::byte{bad.type};
    for (int i = 0; i < 4; i++)
      stream[static_cast<std::size_t>(4 + i)] = static_cast<std::byte>(bad.length >> (24 - 8 * i));
    Decoder decoder;
    Heard heard;
    heard.hear(decoder, stream);
    EXPECT_TRUE(heard.bad);
    heard.hear(decoder, stream_of_all());
    EXPECT_TRUE(heard.records.empty()) << "nothing is believed afterwards";
  }
}

TEST(Control, RingOfAnImpossibleSize_IsRefused) {
  for (const std::uint8_t log2 :
       {std::uint8_t{0}, std::uint8_t{11}, std::uint8_t{26}, std::uint8_t{64}, std::uint8_t{255}}) {
    Bytes stream;
    append(stream, {.type = RecordType::kLaneOpen, .address = {.ring_log2 = log2}});
    Decoder decoder;
    Heard heard;
    heard.hear(decoder, stream);
    EXPECT_TRUE(heard.bad);
  }
}

// Random bytes behind a legal beginning. They are taken byte for byte, or refused. The decoder never takes more than
// there is.
TEST(Control, RandomBytes_AreSurvived) {
  sim::Random random(1);
  std::size_t records = 0, refused = 0;
  for (int run = 0; run < 20'000; run++) {
    Bytes stream = stream_of_all();
    for (std::uint64_t n = random.below(4); n != 0; n--)
      stream[random.below(stream.size())] = static_cast<std::byte>(random.next());
    Decoder decoder;
    Heard heard;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t n = std::min<std::size_t>(1 + random.below(40), stream.size() - at);
      heard.hear(decoder, std::span(stream).subspan(at, n));
      at += n;
    }
    records += heard.records.size();
    refused += heard.bad ? 1U : 0U;
    ASSERT_LE(heard.data.size(), stream.size());
  }
  EXPECT_GT(records, 20'000U);
  EXPECT_GT(refused, 1'000U);
}

std::string hex(const Digest& digest) {
  std::string out;
  for (const std::byte b : digest) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // 56 bytes: the length goes into a block of its own
  EXPECT_EQ(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, Hmac_Rfc4231) {
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(
      hex(hmac_sha256(Bytes(131, std::byte{0xaa}), bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace bypass::fastpath
