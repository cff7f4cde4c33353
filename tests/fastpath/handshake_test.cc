// The handshake: the option on the wire, rules R1 to R5, and everything that a path can do to it.
#include "fastpath/framed/handshake.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fastpath/framed/control.h"

namespace bypass::fastpath {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;
constexpr Instant kStart{1s};

Bytes bytes_of(const std::string& text) {
  const auto* at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}
void append(Bytes& to, std::span<const std::byte> more) {
  to.insert(to.end(), more.begin(), more.end());
}

TEST(SynOption, WhatIsWrittenIsParsed) {
  SynOption option{.framed = false, .capabilities = kCapRoce | kCapShm, .tag = 0xa1b2c3d4};
  for (const bool response : {false, true}) {
    option.response = response;
    option.proof = response ? 0x01020304 : 0;
    Bytes wire(response ? kSynAckOptionBytes : kSynOptionBytes);
    ASSERT_EQ(write_syn_option(wire, option), wire.size());
    EXPECT_EQ(wire[0], std::byte{254});
    EXPECT_EQ(wire[1], std::byte{static_cast<std::uint8_t>(wire.size())});
    EXPECT_EQ(parse_syn_option(std::span(wire).subspan(2)), option);
  }
}

TEST(SynOption, NoRoom_IsLeftOut) {
  Bytes wire(kSynOptionBytes - 1);
  EXPECT_EQ(write_syn_option(wire, {}), 0U);
}

TEST(SynOption, AnotherExperiment_IsNotOurs) {
  Bytes wire(kSynOptionBytes);
  write_syn_option(wire, {});
  const auto body = std::span(wire).subspan(2);
  EXPECT_TRUE(parse_syn_option(body));
  EXPECT_FALSE(parse_syn_option(body.first(body.size() - 1)));
  EXPECT_FALSE(parse_syn_option({}));
  wire[6] = std::byte{0x04};
  EXPECT_FALSE(parse_syn_option(body)) << "version 0";
  write_syn_option(wire, {});
  wire[2] = std::byte{0xe2};
  EXPECT_FALSE(parse_syn_option(body)) << "another ExID";
  write_syn_option(wire, {});
  wire[6] |= std::byte{0x08};
  EXPECT_FALSE(parse_syn_option(body)) << "an answer without proof";
}

TEST(Handshake, ThirdSyn_GoesWithoutTheOption) {
  ClientHandshake client({.tag = 1});
  Bytes room(40);
  EXPECT_EQ(client.write_syn(0, room), kSynOptionBytes);
  EXPECT_EQ(client.write_syn(1, room), kSynOptionBytes);
  EXPECT_EQ(client.write_syn(2, room), 0U);
}

TEST(Handshake, OptionThatDidNotFit_ArmsNobody) {
  ClientHandshake client({.tag = 1});
  Bytes room(8);
  EXPECT_EQ(client.write_syn(0, room), 0U);
  client.on_syn_ack(SynOption{.response = true, .proof = answer_proof(1, 0, {})});
  EXPECT_FALSE(client.armed());
}

TEST(Handshake, MagicOfAnotherSecretTagOrRole_Differs) {
  const Magic base = magic(1, 2, Role::kClient, {});
  EXPECT_NE(base, magic(1, 2, Role::kServer, {}));
  EXPECT_NE(base, magic(1, 3, Role::kClient, {}));
  EXPECT_NE(base, magic(1, 2, Role::kClient, bytes_of("secret")));
}

class SnifferTest : public ::testing::Test {
 protected:
  SnifferTest() { sniffer_.expect(magic_); }
  [[nodiscard]] std::span<const std::byte> first(std::size_t n) const { return std::span(magic_).first(n); }
  const Magic magic_ = magic(1, 2, Role::kClient, {});
  Sniffer sniffer_;
};

TEST_F(SnifferTest, ShortMatch_IsWaitedForTenMilliseconds) {
  EXPECT_EQ(sniffer_.look(kStart, first(3)), Framing::kUnknown);
  EXPECT_EQ(sniffer_.deadline(), kStart + 10ms);
  sniffer_.look(kStart + 5ms, first(4));
  EXPECT_EQ(sniffer_.deadline(), kStart + 10ms) << "more of the same does not start it again";
  sniffer_.on_timeout(kStart + 9ms);
  EXPECT_EQ(sniffer_.framing(), Framing::kUnknown);
  sniffer_.on_timeout(kStart + 10ms);
  EXPECT_EQ(sniffer_.framing(), Framing::kPlain);
}

TEST_F(SnifferTest, LongMatch_IsWaitedForWithoutEnd) {
  sniffer_.look(kStart, first(3));
  EXPECT_EQ(sniffer_.look(kStart, first(8)), Framing::kUnknown);
  EXPECT_EQ(sniffer_.deadline(), kNever);
  EXPECT_EQ(sniffer_.look(kStart + 1h, first(16)), Framing::kFramed);
}

TEST_F(SnifferTest, DifferentByte_IsPlainAtOnce) {
  Bytes almost(first(16).begin(), first(16).end());
  almost[15] ^= std::byte{1};
  EXPECT_EQ(sniffer_.look(kStart, almost), Framing::kPlain);
}

TEST_F(SnifferTest, EndInTheMiddle_IsPlain) {
  sniffer_.look(kStart, first(9));
  sniffer_.on_end();
  EXPECT_EQ(sniffer_.framing(), Framing::kPlain);
}

// --- Everything that a path may do, enumerated

struct Path {
  bool server_is_ours = false, reflects = false, strips_syn = false, strips_syn_ack = false;
  bool bare_ack_first = false, server_talks_first = false, splits = false;
  bool another_secret = false;
};

Path path_of(unsigned bits) {
  const auto bit = [&](unsigned n) { return (bits >> n & 1) != 0; };
  return {bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6), bit(7)};
}

/// One direction: what a writer sends and what a reader makes of it. The bytes of both are the program's or in records.
struct Direction {
  Bytes wire;
  bool framed = false;  // as the writer sees it
  void write(const Bytes& program) {
    if (program.empty()) return;
    if (framed) {
      std::array<std::byte, kMaxControl> room;
      append(wire, std::span(room).first(encode({.length = static_cast<std::uint32_t>(program.size())}, room)));
    }
    append(wire, program);
  }
  void revert() {
    std::array<std::byte, kMaxControl> room;
    append(wire, std::span(room).first(encode({.type = RecordType::kRevert}, room)));
    framed = false;
  }
};

/// What the reading program gets. Nothing: the reader takes the stream as damaged.
std::optional<Bytes> read(const Bytes& wire, Framing framing) {
  if (framing != Framing::kFramed) return wire;
  Decoder decoder;
  Bytes out;
  for (auto rest = std::span(wire).subspan(std::min<std::size_t>(16, wire.size()));;) {
    const Decoder::Step step = decoder.next(rest);
    if (step.event == Decoder::Event::kBad) return std::nullopt;
    append(out, rest.first(step.taken).last(step.data));
    rest = rest.subspan(step.taken);
    if (step.event == Decoder::Event::kMore) return out;
  }
}

/// A client with the library and a server with or without it, over one path.
template <typename Rules>
class Meeting {
 public:
  explicit Meeting(const Path& path)
      : path_(path), server_({.tag = 0x22222222, .secret = std::span(kOther).first(path.another_secret ? 5 : 0)}) {}

  /// Whether each program gets the other's bytes and nothing else.
  bool agree() {
    shake_hands();
    if (path_.server_talks_first) talk_server();
    talk_client();
    deliver_to_server();
    talk_server();
    deliver_to_client();
    later_bytes();
    const Framing from_client = path_.server_is_ours ? server_.reader().framing() : Framing::kPlain;
    return read(c_to_s_.wire, from_client) == bytes_of("request more") &&
           read(s_to_c_.wire, client_.reader().framing()) == bytes_of("banner");
  }
  [[nodiscard]] bool both_framed() {
    return path_.server_is_ours && server_.reader().framing() == Framing::kFramed &&
           client_.reader().framing() == Framing::kFramed;
  }
  [[nodiscard]] bool server_wrote_at_once() const { return talked_first_; }

 private:
  void shake_hands() {
    std::array<std::byte, 16> syn{}, answer{};
    const std::size_t sent = client_.write_syn(0, syn);
    const auto body = [](auto& option, std::size_t length) { return std::span(option).subspan(2, length - 2); };
    const bool arrives = sent != 0 && !path_.strips_syn;
    std::size_t answered = 0;
    if (path_.server_is_ours) {
      server_.on_syn(arrives ? parse_syn_option(body(syn, sent)) : std::nullopt);
      answered = server_.write_syn_ack(answer);
    }
    if (answered == 0 && path_.reflects && arrives) {
      answer = syn;
      answered = sent;
    }
    if (path_.strips_syn_ack) answered = 0;
    client_.on_syn_ack(answered != 0 ? parse_syn_option(body(answer, answered)) : std::nullopt);
    if (path_.bare_ack_first) establish({});
  }
  void establish(std::span<const std::byte> payload) {
    if (path_.server_is_ours) server_.on_established(kStart, payload);
  }
  void talk_client() {
    if (const auto first = client_.first_bytes()) {
      append(c_to_s_.wire, *first);
      c_to_s_.framed = true;
    }
    c_to_s_.write(bytes_of("request "));
  }
  void deliver_to_server() {
    if (!path_.server_is_ours) return;
    const std::span wire = c_to_s_.wire;
    // Without an armed client, the program's own first bytes come with a bare ACK or after one.
    if (!client_.armed()) establish({});
    if (path_.splits) {
      establish(wire.first(5));
      server_.on_first_bytes(kStart, wire.first(11));
    }
    establish(wire);
    server_.on_first_bytes(kStart, wire);
  }
  // The server's program sends as soon as its direction has been decided.
  void talk_server() {
    if (talked_) return;
    const Framing framing = path_.server_is_ours ? server_.writer() : Framing::kPlain;
    if (framing == Framing::kUnknown) return;
    talked_ = true;
    talked_first_ = c_to_s_.wire.empty();
    if (framing == Framing::kFramed) append(s_to_c_.wire, server_.first_bytes());
    s_to_c_.framed = framing == Framing::kFramed;
    s_to_c_.write(bytes_of("banner"));
  }
  void deliver_to_client() {
    for (std::size_t n = path_.splits ? 5 : s_to_c_.wire.size(); n <= s_to_c_.wire.size(); n += 6)
      client_.reader().look(kStart, std::span(s_to_c_.wire).first(n));
    client_.reader().look(kStart, s_to_c_.wire);
  }
  void later_bytes() {
    if (client_.must_revert()) c_to_s_.revert();
    c_to_s_.write(bytes_of("more"));
  }

  static constexpr std::array<std::byte, 5> kOther{std::byte{1}};
  Path path_;
  BasicClientHandshake<Rules> client_{HandshakeConfig{.tag = 0x11111111}};
  BasicServerHandshake<Rules> server_;
  Direction c_to_s_, s_to_c_;
  bool talked_ = false, talked_first_ = false;
};

template <typename Rules>
unsigned mismatches() {
  unsigned count = 0;
  for (unsigned bits = 0; bits < 256; bits++) count += Meeting<Rules>(path_of(bits)).agree() ? 0U : 1U;
  return count;
}

TEST(HandshakePaths, All256_NobodyReadsWhatWasNotWritten) {
  EXPECT_EQ(mismatches<HandshakeRules>(), 0U);
}

TEST(HandshakePaths, CleanPath_IsFramedBothWays) {
  for (const bool splits : {false, true}) {
    Meeting<HandshakeRules> meeting(Path{.server_is_ours = true, .splits = splits});
    EXPECT_TRUE(meeting.agree());
    EXPECT_TRUE(meeting.both_framed());
  }
}

TEST(HandshakePaths, BareAckFirst_ServerThatTalksFirstDoesNotWait) {
  Meeting<HandshakeRules> meeting(Path{.server_is_ours = true, .bare_ack_first = true, .server_talks_first = true});
  EXPECT_TRUE(meeting.agree());
  EXPECT_TRUE(meeting.server_wrote_at_once());
}

// Each leaves one rule out.
struct NoR : HandshakeRules {
  static constexpr bool kClientAsksForR = false;
  static constexpr bool kClientAsksForProof = false;  // which no echo has either
};
struct NoProof : HandshakeRules {
  static constexpr bool kClientAsksForProof = false;
};
struct TrustingServer : HandshakeRules {
  static constexpr bool kServerWaitsForTheAck = false;
};
struct NoMagic : HandshakeRules {
  static constexpr bool kReaderAsksForTheMagic = false;
};

TEST(HandshakePaths, NoR_AReflectorIsTakenForAPeer) {
  EXPECT_GT(mismatches<NoR>(), 0U);
}

TEST(HandshakePaths, NoProof_IsWrongWhereSecretsDiffer) {
  EXPECT_FALSE(Meeting<NoProof>(Path{.server_is_ours = true, .another_secret = true}).agree());
}

TEST(HandshakePaths, ServerThatTrustsItsSynAck_IsWrongWhereThatWasStripped) {
  EXPECT_GT(mismatches<TrustingServer>(), 0U);
}

TEST(HandshakePaths, NoMagic_IsWrongWhereABareAckComesFirst) {
  EXPECT_FALSE(
      Meeting<NoMagic>(Path{.server_is_ours = true, .bare_ack_first = true, .server_talks_first = true}).agree());
  EXPECT_GT(mismatches<NoMagic>(), 0U);
}

}  // namespace
}  // namespace bypass::fastpath
