// An interface whose addresses and MTU change while connections are there (Stack::change_interface).
#include "stack/frame/wire.h"
#include "stack/ip/route.h"
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

struct Changing : Script {
  explicit Changing(const Given& given = {}) : Script(given) {}

  void change(std::initializer_list<Prefix> addresses, std::uint32_t mtu = 1500, bool steered = false) {
    InterfaceConfig config;
    config.mac = host().mac_address();
    config.mtu = mtu;
    config.addresses = {addresses.begin(), addresses.size()};
    config.steered = steered;
    ctx().now = world().now();
    ASSERT_TRUE(host().stack().change_interface(ctx(), 0, config).ok());
  }
  void change_mtu(std::uint32_t mtu) { change({{ip("10.9.0.1"), 24}}, mtu); }
};

TEST(InterfaceChange, Mtu_IsTheSegments) {
  Given given;
  given.mss = 1460;
  Changing s(given);
  s.establish();
  s.change_mtu(1000);
  EXPECT_EQ(s.info().mss, 960U);
  s.write(2000).expect(seg().seq(1).len(960)).expect(seg().seq(961).len(960)).ignore_all();
  s.inject(seg().seq(1).ack(2001));
  s.change_mtu(1500);
  EXPECT_EQ(s.info().mss, 1460U);
  s.ignore_all().write(3000).expect(seg().len(1460));
}

// RFC 1191: what a router has reported stays true.
TEST(InterfaceChange, Mtu_DoesNotWidenANarrowPath) {
  Changing s;
  s.establish().write(3000).ignore_all();
  IcmpError error;
  error.error = Error::kMessageTooLarge;
  error.mtu = 640;
  error.protocol = 6;
  error.local = s.engine().local(*s.tcb());
  error.remote = s.engine().remote(*s.tcb());
  error.sequence = s.host_iss + 1;
  s.engine().on_icmp(s.ctx(), error);
  s.change_mtu(1400);
  EXPECT_EQ(s.info().mss, 600U);
  s.change_mtu(600);
  EXPECT_EQ(s.info().mss, 560U);
}

// A segment was cut for the old MTU. It is cut again when it is sent again.
TEST(InterfaceChange, Mtu_IsTheRepeatedSegmentsToo) {
  Changing s;
  s.establish().write(1000).expect(seg().seq(1).len(1000));
  s.change_mtu(640);
  s.wait(1500ms).expect(seg().seq(1).len(600));
}

// Linux: the connection does not end, nothing leaves, and nothing that comes is accepted. It goes on when the address
// is back.
TEST(InterfaceChange, ConnectionsOfAnAddressThatIsGone_AreSilentUntilItIsBack) {
  Changing s;
  s.establish();
  s.change({{ip("10.9.5.1"), 24}});
  s.write(100).inject(seg().seq(1).ack(1).text("lost")).wait(3s).nothing_more();
  EXPECT_EQ(s.state(), tcp::State::kEstablished);
  EXPECT_EQ(s.read(), "");
  EXPECT_EQ(s.error(), Error::kNone);
  EXPECT_FALSE(s.engine().listen({ip("10.9.0.1"), 81}, 1, {}, nullptr).ok());
  s.change({{ip("10.9.5.1"), 24}, {ip("10.9.0.1"), 24}});
  s.wait(30s).expect(seg().seq(1).len(100)).ignore_all();
  s.inject(seg().seq(1).ack(101).text("here"));
  EXPECT_EQ(s.read(), "here");
}

// Frames for which the script answers no ARP request leave at once.
TEST(InterfaceChange, NeighboursStayKnown) {
  Changing s;
  s.establish();
  const std::uint64_t asked = s.counters().arp_requests;
  s.change({{ip("10.9.0.1"), 24}, {ip("10.9.5.1"), 24}});
  s.write(100).expect(seg().seq(1).len(100));
  EXPECT_EQ(s.counters().arp_requests, asked);
}

TEST(InterfaceChange, EverySteeredFlow_IsListed) {
  Changing s;
  const Prefix own{ip("10.9.0.1"), 24};
  InterfaceConfig config;
  config.mac = s.host().mac_address();
  config.addresses = {&own, 1};
  config.steered = true;
  ASSERT_TRUE(s.host().stack().set_interface(0, config).ok());
  s.ignore_all().establish_active().listen();
  ASSERT_TRUE(s.host().udp().open({{}, 53}, 1 << 16, {}, nullptr).ok());
  std::vector<FlowSpec> flows;
  s.host().stack().for_each_steered(
      [](void* list, const FlowSpec& flow) { static_cast<std::vector<FlowSpec>*>(list)->push_back(flow); }, &flows);
  ASSERT_EQ(flows.size(), 3U);
  EXPECT_EQ(flows[0].protocol, wire::kProtocolTcp);
  EXPECT_EQ(flows[0].remote.port, 0U);  // the listener
  EXPECT_EQ(flows[1].remote.port, s.peer_port);
  EXPECT_EQ(flows[2].protocol, wire::kProtocolUdp);
  EXPECT_TRUE(flows[2].local.address.is_any());
}

}  // namespace
}  // namespace bypass::test
