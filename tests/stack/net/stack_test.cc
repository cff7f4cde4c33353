#include "stack/stack.h"

#include <set>
#include <string>

#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

TEST(Counters, Table_NamesEveryFieldOnce) {
  std::set<std::string> names;
  for (const CounterInfo& info : stack_counter_table()) {
    names.insert(info.name);
    EXPECT_NE(std::string{info.help}, "") << info.name;
    EXPECT_NE(std::string{info.unit}, "") << info.name;
  }
  EXPECT_EQ(names.size() * sizeof(std::uint64_t), sizeof(StackCounters));
  EXPECT_TRUE(names.contains("drop_ip_fragment"));
}

TEST(StackCreate, BudgetTooSmall_GivesNull) {
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> pages(1024);
  bool made_one = false;
  for (std::size_t budget = 4096; budget <= pages.size() * sizeof(Page); budget *= 2) {
    Memory* memory = Memory::create(pages.data(), pages.size() * sizeof(Page), budget);
    if (memory == nullptr) continue;
    const bool made = Stack::create(*memory, {}) != nullptr;
    EXPECT_TRUE(made || !made_one) << "what a small budget can hold, a larger one can";
    made_one |= made;
  }
  EXPECT_TRUE(made_one);
}

class StackHost : public OneHost {};

TEST_F(StackHost, Undelivered_NothingOfAConnectionThatFoundNobody) {
  int user;
  host.ctx().now = world.now();
  tcp::Tcb* connection = *host.tcp().connect(host.ctx(), {}, {ip("10.9.0.2"), 80}, {}, &user);
  run(1us);
  host.tcp().close(host.ctx(), *connection);
  EXPECT_EQ(host.stack().undelivered(host.ctx()), 0U);
}

TEST_F(StackHost, Idle_HasNoDeadline) {
  EXPECT_EQ(host.stack().next_timeout(), kNever);
  EXPECT_FALSE(host.stack().output_pending());
}

TEST_F(StackHost, ConnectToSilentNeighbour_EndsUnreachable) {
  int user;
  host.ctx().now = world.now();
  tcp::Tcb* tcb = *host.tcp().connect(host.ctx(), {}, {ip("10.9.0.2"), 80}, {}, &user);
  run(2900ms);
  EXPECT_EQ(host.take_events(&user), 0);
  run(200ms);
  EXPECT_NE(host.take_events(&user) & kEventError, 0);
  EXPECT_EQ(host.tcp().take_error(*tcb), Error::kHostUnreachable) << "after three questions, as on Linux";
  host.tcp().close(host.ctx(), *tcb);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(StackHost, LargeBurst_IsTakenInPieces) {
  udp::Binding* endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 24, {}, this);
  std::vector<Packet*> burst(300);
  ASSERT_EQ(host.port().alloc(0, burst), burst.size());
  const sim::Bytes frame = udp_frame({}, 9, 7, bytes_of("x"));
  for (Packet* packet : burst) {
    std::memcpy(packet->data, frame.data(), frame.size());
    packet->len = packet->frame_len = static_cast<std::uint32_t>(frame.size());
  }
  host.stack().on_frames(host.ctx(), 0, burst);
  EXPECT_EQ(host.udp().queued(*endpoint), 300U);
  EXPECT_EQ(counters().rx_frames, 300U);
}

// A port that verifies checksums itself. The stack believes it, in both cases.
class VerifyingPort : public OneHost {
 protected:
  VerifyingPort() : OneHost({.caps = offloading_caps()}) {
    endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 20, {}, this);
  }
  udp::Binding* endpoint;
};

TEST_F(VerifyingPort, BadChecksum_IsDroppedByItsFlag) {
  auto frame = udp_frame({}, 9, 7, bytes_of("data"));
  frame.back() ^= std::byte{1};
  exchange(frame);
  EXPECT_EQ(counters().drop_udp_malformed, 1U);
}

TEST_F(VerifyingPort, VouchedFor_IsNotSummedAgain) {
  auto frame = udp_frame({}, 9, 7, bytes_of("data"));
  frame[40] ^= std::byte{1};  // a partial checksum, as between two virtual machines
  Packet* packet = nullptr;
  ASSERT_EQ(host.port().alloc(0, {&packet, 1}), 1U);
  std::memcpy(packet->data, frame.data(), frame.size());
  packet->len = packet->frame_len = static_cast<std::uint32_t>(frame.size());
  packet->flags = kRxL4ChecksumGood;
  host.stack().on_frames(host.ctx(), 0, {&packet, 1});
  EXPECT_EQ(host.udp().queued(*endpoint), 1U);
}

// One stack, two ports: 10.9.0.1 on the first, 10.8.0.1 on the second.
class TwoPorts : public OneHost {
 protected:
  TwoPorts() : second(world.wire().add_port({.mac = mac(77), .caps = {}})) {
    host.ctx().queues[1] = PortQueue{&second, 1, 0};
    host.ctx().ports = 2;
    const Prefix prefix{ip("10.8.0.1"), 24};
    if (!host.stack().set_interface(1, {.mac = mac(77), .addresses = {&prefix, 1}})) std::abort();
    run(3s);
  }
  // The wire is one Ethernet switch. Frames of the second port carry its MAC.
  static std::size_t from_second(const std::vector<sim::Bytes>& frames) {
    return static_cast<std::size_t>(
        std::ranges::count_if(frames, [](const sim::Bytes& f) { return ethernet(f).source == mac(77); }));
  }
  sim::SimPort& second;
};

TEST_F(TwoPorts, PacketsLeave_ByTheirRoutesPort) {
  ASSERT_TRUE(send_to("10.8.0.2"));
  const auto asked = run(1us);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(from_second(asked), 1U);
  EXPECT_EQ(arp(asked[0]).sender_ip, ip("10.8.0.1").v4());
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_EQ(from_second(run(1us)), 0U);
}

TEST_F(TwoPorts, AnswerAtTheWrongPort_IsNotBelieved) {
  ASSERT_TRUE(send_to("10.8.0.2"));
  run(1us);
  EXPECT_TRUE(exchange(arp_reply("10.8.0.2")).empty()) << "at the first port: no answer to the second's question";
}

TEST_F(TwoPorts, ExplicitSource_LastsForOneDatagram) {
  udp::Binding* endpoint = *host.udp().open({{}, 7}, 1 << 16, {}, this);
  for (const IpAddress& source : {ip("10.8.0.1"), IpAddress{}, ip("10.8.0.1")})
    ASSERT_TRUE(host.udp().send(host.ctx(), *endpoint, {ip("10.9.0.2"), 9}, source, {}, {}).ok());
  host.ctx().flush();
  const auto sent = exchange(arp_reply());
  ASSERT_EQ(sent.size(), 4U);  // the question, then the datagrams
  EXPECT_EQ(ipv4(sent[1]).source, ip("10.8.0.1").v4());
  EXPECT_EQ(ipv4(sent[2]).source, ip("10.9.0.1").v4());
  EXPECT_EQ(ipv4(sent[3]).source, ip("10.8.0.1").v4());
}

TEST_F(StackHost, OwnAddressGoesAway_LoopedFrameDoesNotReachThePort) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.1"), path));
  path.local = ip("10.9.0.5");
  Packet* packet = host.network().alloc(host.ctx(), path);
  packet->len = packet->frame_len = 20;
  const Prefix other{ip("10.9.0.5"), 24};
  ASSERT_TRUE(host.stack().set_interface(0, {.mac = mac(1), .addresses = {&other, 1}}));
  EXPECT_EQ(host.network().send(host.ctx(), path, packet, 17).error(), Error::kNoRoute);
}

TEST_F(TwoPorts, RouteMovesToTheOtherPort_FrameIsDroppedNotMixed) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.8.0.2"), path));
  Packet* packet = host.network().alloc(host.ctx(), path);
  packet->len = packet->frame_len = 20;
  const Prefix narrow{ip("10.8.0.129"), 25}, wide{ip("10.8.0.1"), 16};
  ASSERT_TRUE(host.stack().set_interface(1, {.mac = mac(77), .addresses = {&narrow, 1}}));
  ASSERT_TRUE(host.stack().set_interface(0, {.mac = mac(1), .addresses = {&wide, 1}}));
  EXPECT_EQ(host.network().send(host.ctx(), path, packet, 17).error(), Error::kNoRoute);
  EXPECT_EQ(path.port, 0) << "the next packet is taken from the right port";
  EXPECT_EQ(counters().drop_no_route, 1U);
}

}  // namespace
}  // namespace bypass::test
