// What a path and a peer may do to the option: it is stripped, echoed or of another version, one side does not know it,
// or the first segment is split or lost. The bytes always arrive, and a plain peer sees plain TCP.
#include <gtest/gtest.h>

#include <optional>

#include "fastpath/framed/wire.h"
#include "fastpath/framed_world.h"
#include "stack/frame/checksum.h"
#include "stack/tcp/input/segment.h"

namespace bypass::fastpath::test {
namespace {

using Bytes = bypass::sim::Bytes;
using Mode = Framed::Mode;
constexpr std::size_t kTcp = 34;  // Ethernet and IPv4 without options

std::vector<Bytes> one(const Bytes& frame) {
  return std::vector<Bytes>(1, frame);
}
std::vector<Bytes> two(const Bytes& first, const Bytes& second) {
  return std::vector<Bytes>{first, second};
}

struct Tcp {
  explicit Tcp(Bytes& bytes) : frame(bytes), header(*reinterpret_cast<tcp::TcpHeader*>(bytes.data() + kTcp)) {}
  Bytes& frame;
  tcp::TcpHeader& header;
  [[nodiscard]] bool has(std::uint8_t flag) const { return (header.flags & flag) != 0; }
  [[nodiscard]] std::span<std::byte> options() const {
    return std::span(frame).subspan(kTcp + sizeof(tcp::TcpHeader), header.header_len() - sizeof(tcp::TcpHeader));
  }
  [[nodiscard]] std::size_t payload_at() const { return kTcp + header.header_len(); }
  /// The bytes of our option, kind and length included; empty if it is not there.
  [[nodiscard]] std::span<std::byte> option() const {
    const auto all = options();
    for (std::size_t at = 0; at < all.size();) {
      const auto kind = std::to_integer<unsigned>(all[at]);
      if (kind == kOptionKind) return all.subspan(at, std::to_integer<unsigned>(all[at + 1]));
      at += kind <= 1 ? 1 : std::to_integer<unsigned>(all[at + 1]);
    }
    return {};
  }
  void fix_lengths_and_checksums() {
    auto& ip = *reinterpret_cast<wire::Ipv4*>(frame.data() + 14);
    ip.total_len = static_cast<std::uint16_t>(frame.size() - 14);
    bypass::test::fix_ip_checksum(frame);
    const std::size_t length = frame.size() - kTcp;
    header.checksum.set_raw(0);
    const auto pseudo = checksum_pseudo(bypass::test::ip("10.9.0.1"), bypass::test::ip("10.9.0.2"), wire::kProtocolTcp,
                                        static_cast<std::uint32_t>(length));
    header.checksum.set_raw(checksum_finish(checksum(frame.data() + kTcp, length) + pseudo));
  }
};

bool is_tcp(std::span<const std::byte> frame) {
  return frame.size() >= kTcp + sizeof(tcp::TcpHeader) && frame[12] == std::byte{8} && frame[13] == std::byte{0} &&
         frame[23] == std::byte{6};
}

void blank(std::span<std::byte> option) {
  std::fill(option.begin(), option.end(), std::byte{1});
}

/// A path that changes frames. The frames that it returns take the place of the one that came, in order.
using Change = std::function<std::vector<Bytes>(std::size_t from, Bytes frame)>;
void put_in_between(FramedWorld& world, Change change) {
  world.wire().set_filter([&world, change = std::move(change)](std::size_t from, std::span<const std::byte> frame) {
    if (!is_tcp(frame)) return bypass::sim::Fate{};
    Duration delay{};
    for (const Bytes& each : change(from, {frame.begin(), frame.end()})) world.wire().inject(1 - from, each, delay++);
    return bypass::sim::Fate{.copies = 0};
  });
}

std::string text_of(std::size_t bytes) {
  std::string text(bytes, ' ');
  for (std::size_t i = 0; i < bytes; i++) text[i] = static_cast<char>('a' + (i * 7 + i / 251) % 26);
  return text;
}

FramedWorldConfig config_of(bool client_capable = true, bool server_capable = true) {
  FramedWorldConfig config;
  config.cable = false;
  config.side[0].capable = client_capable;
  config.side[1].capable = server_capable;
  config.side[0].tag = 0x1111;
  config.side[1].tag = 0x2222;
  return config;
}

/// Both directions carry bytes and end. Then nothing is left. `server_first`: the server sends before it has received
/// anything.
void converse(FramedWorld& w, bool server_first, const std::string& what) {
  SCOPED_TRACE(what + (server_first ? ", server first" : ", client first"));
  ASSERT_TRUE(w.open());
  const std::size_t first = server_first ? 1 : 0;
  const std::string hello = text_of(40), question = text_of(100'000), answer = text_of(150'001);
  w.write(first, hello);
  EXPECT_TRUE(w.receive(1 - first, hello.size()) == hello) << w.describe();
  // More bytes than a DATA window in each direction, with a reader at the other end.
  std::string got[2];
  for (std::size_t side = 0; side < 2; side++) {
    const std::string& text = side == 0 ? question : answer;
    for (std::size_t at = 0; at < text.size(); at += 10'000) {
      w.write(side, text.substr(at, 10'000));
      w.run_for(1ms);
      got[1 - side] += w.read(1 - side);
    }
    got[1 - side] += w.receive(1 - side, text.size() - got[1 - side].size());
  }
  EXPECT_TRUE(got[1] == question) << got[1].size() << w.describe();
  EXPECT_TRUE(got[0] == answer) << got[0].size() << w.describe();
  for (const std::size_t side : {first, 1 - first}) {
    w.calls(side).shutdown_send(*w.tcb[side]);
    w.run_for(20ms);
    EXPECT_TRUE(w.calls(1 - side).at_eof(*w.tcb[1 - side])) << w.describe();
    EXPECT_EQ(w.host(1 - side).tcp().error(*w.tcb[1 - side]), Error::kNone);
  }
  for (std::size_t side = 0; side < 2; side++) w.calls(side).close(*w.tcb[side]);
  EXPECT_EQ(w.leftovers(), "");
}

struct Path {
  const char* name;
  Change change;
};

std::vector<Path> paths() {
  const auto of_syn = [](auto f) {
    return [f](std::size_t, Bytes frame) {
      Tcp t(frame);
      if (t.has(tcp::kSyn) && !t.option().empty()) f(t);
      t.fix_lengths_and_checksums();
      return one(frame);
    };
  };
  return {
      {"untouched", of_syn([](Tcp&) {})},
      {"stripped from SYN", of_syn([](Tcp& t) {
         if (!t.has(tcp::kAck)) blank(t.option());
       })},
      {"stripped from SYN-ACK", of_syn([](Tcp& t) {
         if (t.has(tcp::kAck)) blank(t.option());
       })},
      {"R taken out of the SYN-ACK", of_syn([](Tcp& t) {
         if (t.has(tcp::kAck)) t.option()[6] &= ~std::byte{8};
       })},
      {"version 0 in the SYN", of_syn([](Tcp& t) {
         if (!t.has(tcp::kAck)) t.option()[6] &= std::byte{0x0f};
       })},
      {"version 0 in the SYN-ACK", of_syn([](Tcp& t) {
         if (t.has(tcp::kAck)) t.option()[6] &= std::byte{0x0f};
       })},
      {"another tag in the SYN", of_syn([](Tcp& t) {
         if (!t.has(tcp::kAck)) put32(&t.option()[8], 0x3333);
       })},
      {"another tag in the SYN-ACK", of_syn([](Tcp& t) {
         if (t.has(tcp::kAck)) put32(&t.option()[8], 0x3333);
       })},
  };
}

TEST(FramedPath, Whatever_IsDoneToTheOption_BytesArrive) {
  for (const Path& path : paths()) {
    for (const bool server_first : {false, true}) {
      FramedWorld w(config_of());
      put_in_between(w, path.change);
      converse(w, server_first, path.name);
    }
  }
}

TEST(FramedPath, OneSideOff_BytesArrive) {
  for (unsigned bits = 0; bits < 4; bits++) {
    for (const bool server_first : {false, true}) {
      FramedWorld w(config_of((bits & 1) != 0, (bits & 2) != 0));
      converse(w, server_first, "capable " + std::to_string(bits));
    }
  }
}

/// A peer that sends the option back unchanged, as some do with options that they do not know.
TEST(FramedPath, OptionIsEchoed_BytesArrive) {
  for (const bool server_first : {false, true}) {
    FramedWorld w(config_of(true, false));
    std::optional<std::array<std::byte, kSynOptionBytes>> seen;
    put_in_between(w, [&](std::size_t, Bytes frame) {
      const auto has_option = [&] { return !Tcp(frame).option().empty(); };
      if (Tcp(frame).has(tcp::kSyn) && !Tcp(frame).has(tcp::kAck) && has_option()) {
        seen.emplace();
        std::copy_n(Tcp(frame).option().begin(), kSynOptionBytes, seen->begin());
      } else if (Tcp(frame).has(tcp::kSyn) && seen) {
        frame.insert(frame.end(), seen->begin(), seen->end());
        Tcp(frame).header.data_offset = static_cast<std::uint8_t>(Tcp(frame).header.data_offset + (3 << 4));
      }
      Tcp(frame).fix_lengths_and_checksums();
      return one(frame);
    });
    converse(w, server_first, "echoed");
    EXPECT_TRUE(seen);
  }
}

/// The segment, cut in two after its first `at` payload bytes.
std::vector<Bytes> cut(const Bytes& frame, std::size_t at) {
  Bytes first = frame, second = frame;
  Tcp head(first), tail(second);
  const std::size_t payload = head.payload_at();
  first.resize(payload + at);
  second.erase(second.begin() + static_cast<std::ptrdiff_t>(payload),
               second.begin() + static_cast<std::ptrdiff_t>(payload + at));
  Tcp(first).fix_lengths_and_checksums();
  Tcp(second).header.seq = std::uint32_t{Tcp(second).header.seq} + static_cast<std::uint32_t>(at);
  Tcp(second).fix_lengths_and_checksums();
  return two(first, second);
}

TEST(FramedPath, FirstSegmentsAreSplit_AtEveryByte) {
  for (std::size_t at = 1; at < 24; at++) {
    for (const std::size_t side : {0U, 1U}) {
      FramedWorld w(config_of());
      bool done = false;
      put_in_between(w, [&](std::size_t from, Bytes frame) {
        const bool has_payload = frame.size() > Tcp(frame).payload_at() + at;
        if (from != side || done || !has_payload) return one(frame);
        done = true;
        return cut(frame, at);
      });
      converse(w, at % 2 == 0, "split at " + std::to_string(at) + " of side " + std::to_string(side));
    }
  }
}

/// A middlebox completes the handshake by itself, before the client's first bytes come.
TEST(FramedPath, BareAckFirst_BytesArrive) {
  for (const bool server_first : {false, true}) {
    FramedWorld w(config_of());
    bool done = false;
    put_in_between(w, [&](std::size_t from, Bytes frame) {
      const std::size_t payload = Tcp(frame).payload_at();
      if (from != 0 || done || frame.size() <= payload) return one(frame);
      done = true;
      Bytes bare = frame;
      bare.resize(payload);
      Tcp(bare).fix_lengths_and_checksums();
      return two(bare, frame);
    });
    converse(w, server_first, "bare ACK first");
  }
}

TEST(FramedPath, FirstBytesAreLost_StillFramed) {
  FramedWorld w(config_of());
  unsigned lost = 0;
  put_in_between(w, [&](std::size_t from, Bytes frame) {
    const bool first = from == 0 && frame.size() > Tcp(frame).payload_at() && lost == 0;
    lost += first ? 1 : 0;
    return first ? std::vector<Bytes>{} : one(frame);
  });
  w.listen();
  w.connect();
  w.run_for(5ms);
  w.write(0, "behind the magic");  // this segment establishes the connection at the server
  ASSERT_TRUE(w.run_until([&] { return w.tcb[1] != nullptr || w.accept(); }));
  EXPECT_EQ(w.receive(1, 16), "behind the magic");
  ASSERT_NE(w.framed(1), nullptr);
  EXPECT_EQ(w.framed(1)->sending, Mode::kFramed);
}

/// Whether the bare segment of an armed client has the sequence number of its first byte.
TEST(FramedPath, ClientSendsNoBareSegment_WhereItsFirstBytesLie) {
  FramedWorld w(config_of());
  unsigned bare = 0, syn_acks = 0;
  std::uint32_t first = 0;
  put_in_between(w, [&](std::size_t from, Bytes frame) {
    const Tcp t(frame);
    if (from == 0 && t.has(tcp::kSyn)) first = std::uint32_t{t.header.seq} + 1;
    const bool empty = frame.size() == t.payload_at();
    if (from == 0 && !t.has(tcp::kSyn) && empty && std::uint32_t{t.header.seq} == first) bare++;
    if (from == 0 && !empty) return std::vector<Bytes>{};  // never arrives, so the SYN-ACK is repeated
    if (from == 1 && t.has(tcp::kSyn)) syn_acks++;
    return one(frame);
  });
  w.listen();
  w.connect();
  w.run_for(4s);
  EXPECT_GT(syn_acks, 1U);
  EXPECT_EQ(bare, 0U);
}

// --- Plain peers see plain TCP

std::vector<Bytes> frames_of(bool client_capable, bool server_capable) {
  FramedWorld w(config_of(client_capable, server_capable));
  std::vector<Bytes> frames;
  w.wire().set_filter([&](std::size_t, std::span<const std::byte> frame) {
    frames.emplace_back(frame.begin(), frame.end());
    return bypass::sim::Fate{};
  });
  converse(w, false, "recorded");
  return frames;
}

TEST(FramedPath, PlainPeer_SeesPlainTcp) {
  const auto plain = frames_of(false, false), to_plain = frames_of(true, false), from_plain = frames_of(false, true);
  EXPECT_TRUE(plain == from_plain) << "the option is in answers alone";
  ASSERT_EQ(plain.size(), to_plain.size());
  for (std::size_t i = 0; i < plain.size(); i++) {
    Bytes frame = to_plain[i];
    if (is_tcp(frame) && Tcp(frame).has(tcp::kSyn) && !Tcp(frame).option().empty()) {
      EXPECT_FALSE(Tcp(frame).has(tcp::kAck));
      EXPECT_EQ(Tcp(frame).options().size(), 32U);
      frame.resize(frame.size() - kSynOptionBytes);
      Tcp(frame).header.data_offset = static_cast<std::uint8_t>(Tcp(frame).header.data_offset - (3 << 4));
      Tcp(frame).fix_lengths_and_checksums();
    }
    EXPECT_TRUE(frame == plain[i]) << "frame " << i;
  }
}

TEST(FramedPath, ThirdSyn_GoesWithoutTheOption) {
  FramedWorld w(config_of());
  unsigned with = 0, without = 0;
  put_in_between(w, [&](std::size_t, Bytes frame) {
    (Tcp(frame).option().empty() ? without : with)++;
    const bool dropped = !Tcp(frame).option().empty();  // a path that drops such segments
    return dropped ? std::vector<Bytes>{} : one(frame);
  });
  converse(w, false, "option kills the segment");
  EXPECT_EQ(with, 2U);
}

/// A plain server may send nothing before the client's end. So the client must not wait for credit.
TEST(FramedPath, PlainServerThatOnlyListens_GetsEverything) {
  FramedWorld w(config_of());
  bool done = false;
  put_in_between(w, [&](std::size_t from, Bytes frame) {
    const std::size_t payload = Tcp(frame).payload_at();
    if (from != 0 || done || frame.size() <= payload) return one(frame);
    done = true;
    Bytes bare = frame;
    bare.resize(payload);
    Tcp(bare).fix_lengths_and_checksums();
    return two(bare, frame);
  });
  ASSERT_TRUE(w.open());
  const std::string text = text_of(500'000);
  std::string got;
  for (std::size_t at = 0; at < text.size(); at += 10'000) {
    w.write(0, text.substr(at, 10'000));
    w.run_for(1ms);
    got += w.read(1);
  }
  got += w.receive(1, text.size() - got.size());
  EXPECT_TRUE(got == text) << got.size() << w.describe();
}

}  // namespace
}  // namespace bypass::fastpath::test
