// What comes over a channel, and in which order.
#include "fastpath/shm/rendezvous/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

namespace bypass::test {
namespace {

namespace shm = fastpath::shm;
using Kind = shm::Channel::Received::Kind;

class ChannelTest : public ::testing::Test {
 protected:
  ChannelTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours = shm::Channel(shm::Descriptor(ends[0]));
    peer = shm::Channel(shm::Descriptor(ends[1]));
  }
  static void say(shm::Channel& channel, std::size_t bytes) {
    const std::array<std::byte, 8> packet{};
    EXPECT_EQ(channel.send(std::span(packet).first(bytes)), shm::Channel::Sent::kSent);
  }
  Kind hear() {
    std::array<std::byte, 8> room{};
    const auto received = ours.receive(room);
    heard_bytes = received.bytes;
    return received.kind;
  }

  shm::Channel ours, peer;
  std::size_t heard_bytes = 0;
};

TEST_F(ChannelTest, Nothing_ThenAPacket_ThenAWakeUp) {
  EXPECT_EQ(hear(), Kind::kNothing);
  say(peer, 3);
  peer.wake();
  EXPECT_EQ(hear(), Kind::kPacket);
  EXPECT_EQ(heard_bytes, 3U);
  EXPECT_EQ(hear(), Kind::kWake);
  EXPECT_EQ(hear(), Kind::kNothing);
}

TEST_F(ChannelTest, PacketsBeforeTheEnd_ComeBeforeIt) {
  say(peer, 3);
  peer.close();
  EXPECT_EQ(hear(), Kind::kPacket);
  EXPECT_EQ(hear(), Kind::kGone);
}

// unix(7): if the other end closes with packets unread, this end gets ECONNRESET.
TEST_F(ChannelTest, PacketsBeforeTheEnd_ComeBeforeIt_AlsoWhereOursWereNotRead) {
  say(ours, 2);
  say(peer, 3);
  say(peer, 4);
  peer.close();
  EXPECT_EQ(hear(), Kind::kPacket);
  EXPECT_EQ(heard_bytes, 3U);
  EXPECT_EQ(hear(), Kind::kPacket);
  EXPECT_EQ(heard_bytes, 4U);
  EXPECT_EQ(hear(), Kind::kGone);
}

}  // namespace
}  // namespace bypass::test
