// Ids' addresses and ports, datagram services, and the bytes of messages.
#include <gtest/gtest.h>

#include <cerrno>

#include "softverbs/cm/two_managers.h"

namespace bypass::cm::test {
namespace {

using namespace std::chrono_literals;

TEST(CmAddress, APortHasOneOwner) {
  World world;
  Manager& manager = world.a().manager();
  const IdNumber first = world.a().make(), second = world.a().make(), datagrams = world.a().make(kSpaceUdp);
  EXPECT_EQ(manager.bind(first, {IpAddress::from_v4(0), 7}), 0);
  EXPECT_EQ(manager.bind(second, {ip(0), 7}), EADDRINUSE);
  EXPECT_EQ(manager.bind(datagrams, {IpAddress::from_v4(0), 7}), 0);  // a port space of its own
  EXPECT_EQ(manager.bind(second, {ip(0), 0}), 0);
  EXPECT_GE(manager.find(second)->source.port, 32'768);
  EXPECT_EQ(manager.bind(second, {ip(0), 8}), EINVAL);
}

TEST(CmAddress, TwoIdsShareAPortIfBothSaySo) {
  World world;
  Manager& manager = world.a().manager();
  const IdNumber first = world.a().make(), second = world.a().make();
  EXPECT_EQ(manager.set_reuse_address(first, true), 0);
  EXPECT_EQ(manager.set_reuse_address(second, true), 0);
  EXPECT_EQ(manager.bind(first, {IpAddress::from_v4(0), 7}), 0);
  EXPECT_EQ(manager.bind(second, {IpAddress::from_v4(0), 7}), 0);
  EXPECT_EQ(manager.listen(first), EADDRINUSE);
}

TEST(CmAddress, OnlyADevicesOwnAddressCanBeBound) {
  World world;
  const IdNumber id = world.a().make();
  EXPECT_EQ(world.a().manager().bind(id, {ip(1), 7}), EADDRNOTAVAIL);
  EXPECT_EQ(world.a().manager().bind(id, {ip(0, true), 7}), 0);
}

TEST(CmAddress, AListenerAtALoopbackAddressIsReachedOverEachDevice) {
  World world;
  const IdNumber listener = world.b().make();
  const IpAddress loopback = IpAddress::from_v4(0x7f000001);
  ASSERT_EQ(world.b().manager().bind(listener, {loopback, 7}), 0);
  ASSERT_EQ(world.b().manager().listen(listener), 0);
  EXPECT_EQ(world.b().manager().find(listener)->source.address, loopback);
  EXPECT_EQ(world.b().manager().bind(world.b().make(), {ip(1), 7}), EADDRINUSE);
  const IdNumber client = world.a().make_routed(7);
  ASSERT_EQ(world.a().manager().connect(client, with_data(17), world.now), 0);
  world.run_for({});
  EXPECT_EQ(world.b().expect(Event::kConnectRequest).listener, listener);
}

TEST(CmAddress, ADestinationThatNoDeviceReachesIsAnEvent) {
  World world;
  const IdNumber id = world.a().make();
  const Endpoint far{IpAddress::from_v4(0xc0a80001), 7};
  EXPECT_EQ(world.a().manager().resolve_address(id, nullptr, far, 1s, world.now), 0);
  world.run_for({});
  EXPECT_EQ(world.a().expect(Event::kAddressError).status, -ENODEV);
  const Endpoint near{ip(1), 7};
  EXPECT_EQ(world.a().manager().resolve_address(id, nullptr, near, 1s, world.now), 0);
  world.run_for({});
  world.a().expect(Event::kAddressResolved);
}

TEST(CmAddress, ANeighbourThatIsSilentTimesOut) {
  World world;
  world.a().neighbour = Neighbour::kAsked;
  const IdNumber id = world.a().make();
  EXPECT_EQ(world.a().manager().resolve_address(id, nullptr, {ip(1), 7}, 2s, world.now), 0);
  world.run_for(1999ms);
  EXPECT_TRUE(world.a().is_quiet());
  world.run_for(1ms);
  EXPECT_EQ(world.a().expect(Event::kAddressError).status, -ETIMEDOUT);
  EXPECT_EQ(world.a().manager().next_timeout(), kNever);
}

TEST(CmAddress, StepsHaveTheirOrder) {
  World world;
  Manager& manager = world.a().manager();
  const IdNumber id = world.a().make();
  EXPECT_EQ(manager.resolve_route(id), EINVAL);
  EXPECT_EQ(manager.connect(id, {}, world.now), EINVAL);
  EXPECT_EQ(manager.accept(id, nullptr, world.now), EINVAL);
  EXPECT_EQ(manager.disconnect(id, world.now), EINVAL);
  EXPECT_EQ(manager.reject(id, {}, 0, world.now), EINVAL);
  EXPECT_EQ(manager.listen(77), ENOENT);
  IdNumber made = 0;
  EXPECT_EQ(manager.create(0x4711, 2, made), EPROTONOSUPPORT);
}

TEST(CmAddress, AListenerForIpv6TakesIpv4UnlessItSaysNo) {
  World world;
  const IdNumber listener = world.b().make();
  world.b().manager().bind(listener, {IpAddress{}, 7});
  world.b().manager().listen(listener);
  const IdNumber strict = world.b().make();
  world.b().manager().set_v6_only(strict, true);
  world.b().manager().bind(strict, {IpAddress{}, 8});
  world.b().manager().listen(strict);
  world.a().manager().connect(world.a().make_routed(7), with_data(17), world.now);
  world.a().manager().connect(world.a().make_routed(8), with_data(18), world.now);
  world.run_for(1ms);
  EXPECT_EQ(world.b().expect(Event::kConnectRequest).listener, listener);
  EXPECT_TRUE(world.b().is_quiet());
  world.a().expect(Event::kRejected);
}

TEST(CmService, TellsItsQueuePairAndAgainIfTheAnswerIsLost) {
  World world;
  bool lost = false;
  world.passes = [&](Message message) { return message != Message::kServiceReply || std::exchange(lost, true); };
  world.b().make_listener(7, kSpaceUdp);
  const IdNumber client = world.a().make_routed(7, kSpaceUdp);
  ASSERT_EQ(world.a().manager().connect(client, with_data(17, "who"), world.now), 0);
  world.run_for(1ms);
  const Happened request = world.b().expect(Event::kConnectRequest);
  EXPECT_EQ(request.parameters.data_bytes, 180U);
  EXPECT_TRUE(begins_with(request.parameters, "who"));
  const Parameters answer = with_data(34, "me");
  ASSERT_EQ(world.b().manager().accept(request.id, &answer, world.now), 0);
  world.run_for(5s);
  EXPECT_TRUE(lost);
  const Happened told = world.a().expect(Event::kEstablished);
  EXPECT_EQ(told.parameters.qpn, 34U);
  EXPECT_EQ(told.parameters.qkey, kDatagramQkey);
  EXPECT_EQ(told.parameters.data_bytes, 136U);
  EXPECT_TRUE(world.b().is_quiet());
  EXPECT_EQ(world.a().manager().next_timeout(), kNever);
}

TEST(CmService, IsRefusedByTheProgramOrIfThereIsNone) {
  World world;
  world.b().make_listener(7, kSpaceUdp);
  world.a().manager().connect(world.a().make_routed(7, kSpaceUdp), with_data(17), world.now);
  world.run_for(1ms);
  world.b().manager().reject(world.b().expect(Event::kConnectRequest).id, {}, 0, world.now);
  world.run_for(1ms);
  EXPECT_EQ(world.a().expect(Event::kUnreachable).status, 2);
  world.a().manager().connect(world.a().make_routed(9, kSpaceUdp), with_data(17), world.now);
  world.run_for(1ms);
  EXPECT_EQ(world.a().expect(Event::kUnreachable).status, 1);
}

// Offsets from the specification's tables, behind the common header of 24 bytes.
TEST(CmMad, FieldsLieWhereTheSpecificationHasThem) {
  Request r;
  r.service = service_of(kSpaceTcp, 0x1234);
  r.qpn = 0xabcdef;
  r.starting_psn = 0x123456;
  r.responder_resources = 3;
  r.initiator_depth = 5;
  r.remote_response_timeout = 20;
  r.local_response_timeout = 19;
  r.retry_count = 7;
  r.rnr_retry_count = 6;
  r.max_cm_retries = 15;
  r.mtu = 3;
  r.ack_timeout = 17;
  r.srq = true;
  r.local_gid = ip(0);
  r.remote_gid = ip(1);
  write_ip_header(r.data, {ip(0), ip(1), 0x5678});
  const Mad mad = make_request({0x0102030405060708, Message::kRequest, 0x11223344, 0}, r);
  const auto at = [&](std::size_t offset) { return std::to_integer<unsigned>(mad[24 + offset]); };
  EXPECT_EQ(std::to_integer<unsigned>(mad[1]), 7U);
  EXPECT_EQ(std::to_integer<unsigned>(mad[17]), 0x10U);
  EXPECT_EQ(at(0), 0x11U);
  EXPECT_EQ(at(13), 0x06U);
  EXPECT_EQ(at(14), 0x12U);
  EXPECT_EQ(at(32), 0xabU);
  EXPECT_EQ(at(35), 3U);
  EXPECT_EQ(at(43), 20U << 3);
  EXPECT_EQ(at(44), 0x12U);
  EXPECT_EQ(at(47), 19U << 3 | 7U);
  EXPECT_EQ(at(50), 3U << 4 | 6U);
  EXPECT_EQ(at(51), 15U << 4 | 8U);
  EXPECT_EQ(at(66), 0xffU);  // ::ffff:10.9.0.1
  EXPECT_EQ(at(95), 17U << 3);
  EXPECT_EQ(at(141), 0x40U);
  EXPECT_EQ(at(142), 0x56U);
  EXPECT_EQ(at(156), 10U);

  const Request read = read_request(mad);
  EXPECT_EQ(read.service, r.service);
  EXPECT_EQ(read.qpn, r.qpn);
  EXPECT_EQ(read.local_response_timeout, 19);
  EXPECT_EQ(read.local_gid, ip(0));
  EXPECT_TRUE(read.srq);
  const auto header = read_ip_header(read.data);
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->source, ip(0));
  EXPECT_EQ(header->destination, ip(1));
  EXPECT_EQ(header->source_port, 0x5678);
}

}  // namespace
}  // namespace bypass::cm::test
