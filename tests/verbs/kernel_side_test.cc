// What a port on a shared interface learns from the kernel, and what it keeps from the wire.
#include "backends/verbs/kernel_side.h"

#include <gtest/gtest.h>
#include <linux/icmp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "backends/plain_host.h"
#include "fake_kernel.h"
#include "stack/frame/wire.h"

namespace bypass::verbs {
namespace {

using Addresses = std::vector<std::uint32_t>;
using Connection = FakeKernel::Connection;

constexpr std::uint32_t kOurs = 0x0a4d0001, kPeer = 0x0a4d0002, kOther = 0x0a4d0003;
constexpr MacAddress kPeerMac{{2, 0, 0, 0, 1, 2}};

struct NeedsLibc : testing::Test {
  static void SetUpTestSuite() {
    const char* missing = nullptr;
    ASSERT_TRUE(packet::bind_libc(&PlainHost::host(), &missing)) << missing;
  }
};

class KernelSideTest : public NeedsLibc {
 protected:
  static constexpr std::uint32_t kFrames = 128;

  void SetUp() override {
    std::string problem;
    ASSERT_TRUE(pool.create(packet::FramePool::kLarge, kFrames * packet::FramePool::kLarge.element, 0, Hugepages::kOff,
                            problem));
    EXPECT_EQ(problem, "");
  }
  void open() {
    std::string problem;
    ASSERT_TRUE(side.open(FakeKernel::kName, wakeup, problem)) << problem;
  }
  Packet& frame(std::size_t length) {
    Packet* const made = pool.take();
    std::memset(made->data, 0, length);
    made->len = made->frame_len = static_cast<std::uint32_t>(length);
    return *made;
  }
  /// The stack's ARP frame, cut to `length`.
  void ask(std::uint32_t target, std::uint16_t operation = wire::kArpRequest, std::uint32_t sender = kOurs,
           std::size_t length = 42) {
    Packet& question = frame(42);
    auto& arp = wire::at<wire::Arp>(question, sizeof(wire::Ethernet));
    arp.operation = operation;
    arp.sender_ip = sender;
    arp.target_ip = target;
    question.len = static_cast<std::uint32_t>(length);
    side.take_arp(question);
    pool.free_frame(&question);
  }
  /// The addresses that are answered for at one look, in order. `announced`: those that nobody asked for. Each answer
  /// says what it must say.
  Addresses answered(std::size_t room = 64, const MacAddress& mac = kPeerMac) {
    std::vector<Packet*> out(room);
    out.resize(side.receive(pool, out));
    Addresses addresses;
    for (Packet* const each : out) {
      const auto& ethernet = wire::at<wire::Ethernet>(*each, 0);
      const auto& arp = wire::at<wire::Arp>(*each, sizeof ethernet);
      EXPECT_EQ(each->len, 42U);
      EXPECT_EQ(each->frame_len, 42U);
      EXPECT_EQ(ethernet.destination, FakeKernel::kMac);
      EXPECT_EQ(ethernet.source, mac);
      EXPECT_EQ(ethernet.type, wire::kEtherTypeArp);
      EXPECT_EQ(arp.hardware, 1);
      EXPECT_EQ(arp.protocol, wire::kEtherTypeIpv4);
      EXPECT_EQ(arp.hardware_len, 6);
      EXPECT_EQ(arp.protocol_len, 4);
      EXPECT_EQ(arp.operation, wire::kArpReply);
      EXPECT_EQ(arp.sender_mac, mac);
      EXPECT_EQ(arp.target_mac, FakeKernel::kMac);
      const bool announces = arp.target_ip == arp.sender_ip;
      EXPECT_TRUE(announces || arp.target_ip == kOurs);
      (announces ? announced : addresses).push_back(arp.sender_ip);
      pool.free_frame(each);
    }
    return addresses;
  }
  [[nodiscard]] bool wakes() const {
    pollfd item{wakeup.descriptor(), POLLIN, 0};
    return poll(&item, 1, 0) == 1;
  }

  FakeKernel kernel;
  Addresses announced;
  packet::FramePool pool;
  packet::Wakeup wakeup;
  KernelSide side;
};

// --- Opening

TEST_F(KernelSideTest, Open_WhatIsMissingIsSaid) {
  std::string problem;
  EXPECT_FALSE(side.open("eth8", wakeup, problem));
  EXPECT_EQ(problem, "no network interface eth8: No such device");
  kernel.tells = false;
  EXPECT_FALSE(side.open(FakeKernel::kName, wakeup, problem));
  EXPECT_EQ(problem, "the kernel does not tell of the neighbours on eth7: Operation not permitted");
  kernel.tells = true;
  open();
  EXPECT_EQ(side.mac(), FakeKernel::kMac);
}

TEST_F(KernelSideTest, IsThere_OfTheSameNameAndAddress) {
  std::string problem;
  EXPECT_TRUE(KernelSide::is_there(FakeKernel::kName, FakeKernel::kMac, problem));
  EXPECT_FALSE(KernelSide::is_there(FakeKernel::kName, kPeerMac, problem));
  EXPECT_EQ(problem, "the network interface eth7 has another MAC address than before");
  EXPECT_FALSE(KernelSide::is_there("eth8", FakeKernel::kMac, problem));
}

// --- Neighbours

TEST_F(KernelSideTest, KnownNeighbour_IsAnsweredAtOnceAndUsed) {
  kernel.neighbours[kPeer] = kPeerMac;
  open();
  ask(kPeer);
  EXPECT_TRUE(side.has_questions());
  EXPECT_EQ(answered(), Addresses{kPeer});
  EXPECT_FALSE(side.has_questions());
  EXPECT_EQ(kernel.used, Addresses{kPeer});
  EXPECT_TRUE(kernel.nudged.empty());
}

TEST_F(KernelSideTest, UnknownNeighbour_IsAnsweredWhenItIsFound) {
  open();
  ask(kPeer);
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_TRUE(side.has_questions());
  EXPECT_FALSE(wakes());
  kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_TRUE(wakes());
  EXPECT_EQ(answered(), Addresses{kPeer});
  EXPECT_FALSE(side.has_questions());
  kernel.tell({.address = kPeer, .mac = kPeerMac});  // nobody asks any more
  EXPECT_EQ(answered(), Addresses{});
}

TEST_F(KernelSideTest, News_OfAnythingElseIsNoAnswer) {
  open();
  ask(kPeer);
  kernel.tell({.address = kOther, .mac = kPeerMac});
  kernel.tell({.address = kPeer, .mac = kPeerMac, .interface = FakeKernel::kIndex + 1});
  kernel.tell({.address = kPeer, .mac = kPeerMac, .family = AF_INET6});
  for (const std::uint16_t state : {NUD_NONE, NUD_INCOMPLETE, NUD_FAILED})
    kernel.tell({.address = kPeer, .mac = kPeerMac, .state = state});
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_TRUE(side.has_questions());
  for (const std::uint16_t state : {NUD_PERMANENT, NUD_NOARP, NUD_REACHABLE, NUD_PROBE, NUD_STALE, NUD_DELAY}) {
    ask(kPeer);
    kernel.tell({.address = kPeer, .mac = kPeerMac, .state = state});
    EXPECT_EQ(answered(), Addresses{kPeer}) << state;
  }
}

// The process that had the port before may have reported a neighbour with another MAC address.
TEST_F(KernelSideTest, NewsNobodyAskedFor_IsAnnouncedOnce) {
  constexpr MacAddress kAnother{{2, 0, 0, 0, 0, 99}};
  open();
  for (int i = 0; i < 2; i++) kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_EQ(announced, Addresses{kPeer});
  kernel.tell({.address = kPeer, .mac = kAnother});
  EXPECT_EQ(answered(64, kAnother), Addresses{});
  EXPECT_EQ(announced, (Addresses{kPeer, kPeer}));
}

TEST_F(KernelSideTest, InterfaceMadeAnew_HasMovedWhereItIsTheSameByNameAndAddress) {
  open();
  kernel.tell_of_links();
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_FALSE(side.has_moved());
  kernel.index++;
  kernel.mac = kPeerMac;
  kernel.tell_of_links();
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_FALSE(side.has_moved());
  kernel.mac = FakeKernel::kMac;
  kernel.lose_news();
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_TRUE(side.has_moved());
  open();
  EXPECT_FALSE(side.has_moved());
  ask(kPeer);
  kernel.tell({.address = kPeer, .mac = kPeerMac, .interface = kernel.index});
  EXPECT_EQ(answered(), Addresses{kPeer});
}

TEST_F(KernelSideTest, AskedAgain_IsOneQuestion) {
  open();
  for (int i = 0; i < 3; i++) ask(kPeer);
  EXPECT_EQ(kernel.looked_up, (Addresses{kPeer, kPeer, kPeer}));
  kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_EQ(answered(), Addresses{kPeer});
  EXPECT_FALSE(side.has_questions());
}

// The kernel says what other hosts are told.
TEST_F(KernelSideTest, WhatIsNoQuestion_IsNotAsked) {
  open();
  ask(kPeer, wire::kArpReply);
  ask(kOurs);  // an announcement
  ask(kPeer, wire::kArpRequest, kOurs, 41);
  EXPECT_TRUE(kernel.looked_up.empty());
  EXPECT_FALSE(side.has_questions());
}

// If there is no place, the oldest question loses its place. It is asked again if it matters.
TEST_F(KernelSideTest, MoreQuestionsThanPlaces_TheOldestAskAgain) {
  constexpr std::uint32_t kPlaces = 64, kMore = 6, kFirst = 0x0a4d0100;
  open();
  for (std::uint32_t i = 0; i < kPlaces + kMore; i++) {
    ask(kFirst + i);
    EXPECT_EQ(answered(), Addresses{});
  }
  for (std::uint32_t i = 0; i < kPlaces + kMore; i++) kernel.tell({.address = kFirst + i, .mac = kPeerMac});
  Addresses all;
  for (std::uint32_t i = 0; i < kPlaces + kMore; i++) {
    const Addresses some = answered(KernelSide::kMostReady);
    all.insert(all.end(), some.begin(), some.end());
  }
  ASSERT_EQ(all.size(), kPlaces);
  EXPECT_EQ(announced.size(), kMore) << "what is known all the same is said";
  for (std::uint32_t i = 0; i < kPlaces; i++) EXPECT_EQ(all[i], kFirst + kMore + i);
  EXPECT_FALSE(side.has_questions());
  kernel.neighbours[kFirst] = kPeerMac;
  ask(kFirst);
  EXPECT_EQ(answered(), Addresses{kFirst});
}

// Without CAP_NET_ADMIN the kernel refuses to be asked. It looks a neighbour up if a datagram is sent to it.
TEST_F(KernelSideTest, WithoutTheCapability_ADatagramAsks) {
  kernel.admin = false;
  open();
  ask(kPeer);
  ask(kOther);
  EXPECT_TRUE(kernel.nudged.empty());  // it has not said so yet
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_NE(std::find(kernel.nudged.begin(), kernel.nudged.end(), kPeer), kernel.nudged.end());
  EXPECT_NE(std::find(kernel.nudged.begin(), kernel.nudged.end(), kOther), kernel.nudged.end());
  EXPECT_EQ(kernel.bound[0], FakeKernel::kName);
  kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_EQ(answered(), Addresses{kPeer});
  kernel.nudged.clear();
  kernel.used.clear();
  ask(kPeer);
  EXPECT_EQ(kernel.nudged, Addresses{kPeer});
  EXPECT_TRUE(kernel.used.empty());  // once is enough
}

TEST_F(KernelSideTest, NewsIsLost_WhatComesAfterIsHeard) {
  open();
  ask(kPeer);
  (void)answered();
  kernel.lose_news();
  kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_EQ(answered(), Addresses{kPeer});
  ask(kOther);
  (void)answered();
  kernel.lose_news();
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_TRUE(side.has_questions());
  kernel.neighbours[kOther] = kPeerMac;
  ask(kOther);  // as the stack does after a while
  EXPECT_EQ(answered(), Addresses{kOther});
}

TEST_F(KernelSideTest, LittleRoom_LeavesTheRestForLater) {
  constexpr std::uint32_t kCount = 20, kFirst = 0x0a4d0100;
  open();
  for (std::uint32_t i = 0; i < kCount; i++) ask(kFirst + i);
  while (!answered().empty()) {
  }
  for (std::uint32_t i = 0; i < kCount; i++) kernel.tell({.address = kFirst + i, .mac = kPeerMac});
  EXPECT_EQ(answered(KernelSide::kMostReady - 1), Addresses{});
  for (std::uint32_t i = 0; i < kCount; i++) EXPECT_EQ(answered(KernelSide::kMostReady), Addresses{kFirst + i});
}

TEST_F(KernelSideTest, NoFrameForTheAnswer_TheQuestionStays) {
  open();
  ask(kPeer);
  (void)answered();
  std::vector<Packet*> all(pool.free_count());
  ASSERT_EQ(pool.alloc(all), all.size());
  kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_EQ(answered(), Addresses{});
  EXPECT_TRUE(side.has_questions());
  for (Packet* const each : all) pool.free_frame(each);
  kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_EQ(answered(), Addresses{kPeer});
}

// The device was lost and is back. News comes by other descriptors.
TEST_F(KernelSideTest, OpenedAgain_QuestionsAreStillOpen) {
  open();
  ask(kPeer);
  (void)answered();
  open();
  EXPECT_FALSE(wakes());
  kernel.tell({.address = kPeer, .mac = kPeerMac});
  EXPECT_TRUE(wakes());
  EXPECT_EQ(answered(), Addresses{kPeer});
}

// --- ICMP errors

TEST_F(KernelSideTest, IcmpErrors_ComeAsFrames) {
  open();
  EXPECT_EQ(kernel.bound[IPPROTO_ICMP], FakeKernel::kName);
  EXPECT_EQ(~kernel.icmp_filter, 1U << ICMP_DEST_UNREACH | 1U << ICMP_TIME_EXCEEDED | 1U << ICMP_PARAMETERPROB);
  std::array<std::byte, 56> error{};
  for (std::size_t i = 0; i < error.size(); i++) error[i] = static_cast<std::byte>(i + 1);
  kernel.deliver(error);
  EXPECT_TRUE(wakes());
  std::vector<Packet*> out(64);
  ASSERT_EQ(side.receive(pool, out), 1U);
  const Packet& frame = *out[0];
  ASSERT_EQ(frame.len, sizeof(wire::Ethernet) + error.size());
  EXPECT_EQ(wire::at<wire::Ethernet>(frame, 0).destination, FakeKernel::kMac);
  EXPECT_EQ(wire::at<wire::Ethernet>(frame, 0).type, wire::kEtherTypeIpv4);
  EXPECT_EQ(std::memcmp(frame.data + sizeof(wire::Ethernet), error.data(), error.size()), 0);
  pool.free_frame(out[0]);
  EXPECT_EQ(side.receive(pool, out), 0U);
}

TEST_F(KernelSideTest, IcmpErrors_WithoutTheCapabilityThereAreNone) {
  kernel.raw = false;
  kernel.neighbours[kPeer] = kPeerMac;
  open();
  ask(kPeer);
  EXPECT_EQ(answered(), Addresses{kPeer});
}

// --- Resets

class ResetTest : public KernelSideTest {
 protected:
  static constexpr std::uint8_t kReset = 4, kAck = 16;
  static constexpr Connection kOne{kOurs, kPeer, 80, 40000, TCP_ESTABLISHED};

  void SetUp() override {
    KernelSideTest::SetUp();
    open();
  }
  bool is_wrong(const Connection& of, std::uint8_t flags = kReset | kAck, std::size_t options = 0,
                std::uint8_t protocol = IPPROTO_TCP, std::size_t length = 54) {
    Packet& out = frame(80);
    auto& ip = wire::at<wire::Ipv4>(out, sizeof(wire::Ethernet));
    ip.version_ihl = static_cast<std::uint8_t>(0x45 + options / 4);
    ip.protocol = protocol;
    ip.source = of.local;
    ip.destination = of.remote;
    const std::size_t tcp = sizeof(wire::Ethernet) + sizeof ip + options;
    wire::at<wire::Be16>(out, tcp) = of.local_port;
    wire::at<wire::Be16>(out, tcp + 2) = of.remote_port;
    out.data[tcp + 13] = std::byte{flags};
    out.len = static_cast<std::uint32_t>(length + options);
    const bool wrong = side.is_wrong_reset(out);
    pool.free_frame(&out);
    return wrong;
  }
};

TEST_F(ResetTest, OfTheKernelsConnection_IsWrong) {
  EXPECT_FALSE(is_wrong(kOne));
  kernel.connections = {kOne};
  EXPECT_TRUE(is_wrong(kOne));
  EXPECT_TRUE(is_wrong(kOne, kReset));
  EXPECT_TRUE(is_wrong(kOne, kReset | kAck, 8));  // behind IP options
  Connection another = kOne;
  another.remote_port++;
  EXPECT_FALSE(is_wrong(another));
  ASSERT_EQ(kernel.sought.size(), 5U);
  EXPECT_EQ(kernel.sought[1], kOne);
  EXPECT_EQ(kernel.sought[3], kOne);
}

// Its own port is steered to us. The kernel's listener has the other addresses.
TEST_F(ResetTest, WhereTheKernelOnlyListens_IsRight) {
  kernel.connections = {{0, 0, kOne.local_port, 0, TCP_LISTEN}};
  EXPECT_FALSE(is_wrong(kOne));
  EXPECT_EQ(kernel.sought.size(), 1U);
}

TEST_F(ResetTest, WhatIsNoReset_IsNotAskedFor) {
  kernel.connections = {kOne};
  EXPECT_FALSE(is_wrong(kOne, kAck));
  EXPECT_FALSE(is_wrong(kOne, kReset, 0, IPPROTO_UDP));
  EXPECT_FALSE(is_wrong(kOne, kReset, 0, IPPROTO_TCP, 47));  // its flags are cut off
  EXPECT_FALSE(is_wrong(kOne, kReset, 0, IPPROTO_TCP, 33));
  EXPECT_TRUE(kernel.sought.empty());
}

}  // namespace
}  // namespace bypass::verbs
