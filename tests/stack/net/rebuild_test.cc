// What is left of the network after a process has died inside the lock.
#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

class Rebuild : public OneHost {
 protected:
  Rebuild() { endpoint = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 20, {}, this); }
  void rebuild() {
    host.memory().begin_rebuild();
    host.stack().rebuild(host.ctx());
    host.memory().finish_rebuild();
  }
  udp::Binding* endpoint;
};

TEST_F(Rebuild, EndpointAndArenaDatagrams_Survive) {
  for (int i = 0; i < 60; i++) world.wire().inject(0, udp_frame({}, 9, 7, bytes_of("datagram")));
  run(1us);
  // The first datagrams lie in the port's frames. A dead owner's frames are gone, so they are read first here.
  for (int i = 0; i < 16; i++) host.udp().pop(host.ctx(), *endpoint);
  const std::size_t before = host.udp().queued(*endpoint);
  const std::size_t used = host.memory().stats().used_bytes;
  rebuild();
  EXPECT_EQ(host.udp().queued(*endpoint), before);
  EXPECT_EQ(host.memory().stats().used_bytes, used) << "nothing leaks, nothing is free that is in use";
  EXPECT_FALSE(host.stack().events().empty()) << "readable, once more";
  exchange(udp_frame({}, 9, 7, bytes_of("another")));
  EXPECT_EQ(host.udp().queued(*endpoint), before + 1);
}

TEST_F(Rebuild, DatagramsInFramesOfThePortsOwner_Survive) {
  for (int i = 0; i < 3; i++) world.wire().inject(0, udp_frame({}, 9, 7, bytes_of("datagram")));
  run(1us);
  rebuild();
  EXPECT_EQ(host.udp().queued(*endpoint), 3U);
  for (int i = 0; i < 3; i++) host.udp().pop(host.ctx(), *endpoint);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Rebuild, FramesThatWaitForANeighbour_GoBackToTheirPort) {
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_EQ(host.stack().undelivered(host.ctx()), 1U);
  rebuild();
  EXPECT_EQ(host.stack().undelivered(host.ctx()), 0U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Rebuild, Neighbours_AreAskedAnew) {
  resolve_peer();
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(send_on(path));
  run(1us);
  rebuild();
  ASSERT_TRUE(send_on(path));
  EXPECT_TRUE(is_arp_request(run(1us).at(0)));
  EXPECT_EQ(exchange(arp_reply()).size(), 1U);
}

TEST_F(Rebuild, FramesOnTheirWayToOurselves_AreForgottenNotLeaked) {
  const std::size_t used = host.memory().stats().used_bytes;
  ASSERT_TRUE(send_to("10.9.0.1"));
  EXPECT_GT(host.memory().stats().used_bytes, used);
  rebuild();
  EXPECT_EQ(host.memory().stats().used_bytes, used);
  EXPECT_FALSE(host.stack().output_pending());
}

}  // namespace
}  // namespace bypass::test
