// Frames over vhost and virtio: there and back, large, gathered, with the flags of either end.
#include <algorithm>

#include "driver.h"
#include "stack/frame/packet.h"

namespace bypass::test {
namespace {

TEST(DpdkFrames, VhostFirst) {
  Wire wire;
  ASSERT_OK(wire.open_vhost());
  ASSERT_OK(wire.open_virtio());
  wire.vhost.say("echo");
  EXPECT_OK(wire.virtio.ask("wait-link up"));
  EXPECT_EQ(wire.virtio.ask("ping 5000 60"), "ok 5000 0");
}

TEST(DpdkFrames, VirtioFirst) {
  Wire wire;
  ASSERT_OK(wire.open_virtio());
  ASSERT_OK(wire.open_vhost());
  wire.virtio.say("echo");
  EXPECT_OK(wire.vhost.ask("wait-link up"));
  EXPECT_EQ(wire.vhost.ask("ping 5000 60"), "ok 5000 0");
}

TEST(DpdkFrames, AddressesDifferAndAreTheSameInEveryRun) {
  std::string vhost_mac;
  Folder folder;
  for (int run = 0; run < 2; run++) {
    Driver vhost, virtio;
    const std::string a = vhost.ask("open vhost " + (folder / "w"));
    const std::string b = virtio.ask("open virtio " + (folder / "w"));
    EXPECT_OK(a);
    EXPECT_NE(a, b);
    EXPECT_TRUE(run == 0 || a == vhost_mac);
    vhost_mac = a;
    EXPECT_OK(virtio.ask("close"));
    EXPECT_OK(vhost.ask("close"));
  }
}

void exchange_sizes(Driver& from, Driver& to, const std::string& verb) {
  to.say("echo");
  for (const int size : {60, 200, 1514, 1515, 2048, 4096, 9014, 33'000, 65'000, 65'469})
    EXPECT_EQ(from.ask(verb + " 50 " + std::to_string(size)), "ok 50 0") << size;
}

TEST(DpdkFrames, LargeFromVirtio) {
  Wire wire;
  wire.open();
  exchange_sizes(wire.virtio, wire.vhost, "ping");
}

TEST(DpdkFrames, LargeFromVhost) {
  Wire wire;
  wire.open();
  exchange_sizes(wire.vhost, wire.virtio, "ping");
}

TEST(DpdkFrames, GatherFromVhost) {
  Wire wire;
  wire.open();
  EXPECT_EQ(wire.vhost.ask("caps"), "ok 111");
  EXPECT_EQ(wire.virtio.ask("caps"), "ok 110");
  exchange_sizes(wire.vhost, wire.virtio, "gather");
}

TEST(DpdkFrames, UnfilledChecksumsAreVouchedFor) {
  Wire wire;
  wire.open();
  const std::string expected = "ok " + std::to_string(kRxL4ChecksumGood) + " 0";
  wire.vhost.say("echo");
  EXPECT_EQ(wire.virtio.ask("flags"), expected);
  EXPECT_OK(wire.vhost.ask("stats"));  // ends the echo: its own answer comes first
  EXPECT_OK(wire.vhost.hear());
  wire.virtio.say("echo");
  EXPECT_EQ(wire.vhost.ask("flags"), expected);
}

TEST(DpdkFrames, BuffersComeHome) {
  Wire wire;
  wire.open();
  wire.vhost.say("echo");
  EXPECT_EQ(wire.virtio.ask("ping 2000 9000"), "ok 2000 0");
  EXPECT_OK(wire.vhost.ask("close"));
  EXPECT_OK(wire.vhost.hear());
  EXPECT_OK(wire.virtio.ask("wait-link down"));
  // When the device is closed, no ring holds a buffer.
  std::string answer;
  long numbers[7] = {};
  do {
    answer = wire.virtio.ask("stats");
    std::sscanf(answer.c_str(), "ok %ld %ld %ld %ld %ld %ld %ld", numbers, numbers + 1, numbers + 2, numbers + 3,
                numbers + 4, numbers + 5, numbers + 6);
    EXPECT_OK(wire.virtio.ask("poll"));
  } while (numbers[2] == 0);
  EXPECT_EQ(numbers[5], numbers[6]) << answer;
}

// A frame that the driver would never take is dropped and counted, and those behind it go out.
TEST(DpdkFrames, ARefusedFrameHoldsNothingUp) {
  Wire wire;
  ASSERT_OK(wire.open_vhost());
  ASSERT_OK(wire.virtio.ask("open dpdk net_virtio_user0,path=" + wire.path));
  wire.vhost.say("echo");
  EXPECT_OK(wire.virtio.ask("wait-link up"));
  for (int round = 1; round <= 300; round++)  // each lost buffer would be missed by now
    ASSERT_EQ(wire.virtio.ask("refusal"), "ok 3 2 " + std::to_string(round));
}

TEST(DpdkFrames, SleepersAreWoken) {
  Wire wire;
  wire.open();
  wire.vhost.say("sleep-echo");
  EXPECT_OK(wire.virtio.ask("sleep-ping 300"));
  EXPECT_OK(wire.vhost.ask("stats"));
  EXPECT_OK(wire.vhost.hear());
  wire.virtio.say("sleep-echo");
  EXPECT_OK(wire.vhost.ask("sleep-ping 300"));
}

TEST(DpdkFrames, AnArmedPortSleepsWhenNothingComes) {
  Wire wire;
  wire.open();
  for (Driver* end : {&wire.vhost, &wire.virtio}) {
    const std::string answer = end->ask("idle 500");
    long cpu_us = -1, wakes = -1;
    std::sscanf(answer.c_str(), "ok %ld %ld", &cpu_us, &wakes);
    EXPECT_GE(wakes, 0) << answer;
    EXPECT_LE(wakes, 3) << answer;
  }
}

TEST(DpdkFrames, TwoPairsAtOnce) {
  Wire a, b;
  for (Wire* wire : {&a, &b}) {
    wire->vhost.say("open vhost " + wire->path);
    wire->virtio.say("open virtio " + wire->path);
  }
  for (Wire* wire : {&a, &b}) {
    EXPECT_OK(wire->vhost.hear());
    EXPECT_OK(wire->virtio.hear());
    wire->vhost.say("echo");
    wire->virtio.say("wait-link up");
  }
  for (Wire* wire : {&a, &b}) {
    EXPECT_OK(wire->virtio.hear());
    wire->virtio.say("ping 1000 60");
  }
  for (Wire* wire : {&a, &b}) EXPECT_EQ(wire->virtio.hear(), "ok 1000 0");
}

}  // namespace
}  // namespace bypass::test
