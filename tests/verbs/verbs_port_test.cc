// VerbsPort over a device that fails as it is told to.
#include "backends/verbs/verbs_port.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "fake_device.h"

namespace bypass::verbs {
namespace {

constexpr std::size_t kBuffers = 512;
constexpr std::uint32_t kBuffer = packet::FramePool::kLargeRoom - 14;  // one frame's

class VerbsPortTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(packet::bind_libc(&PlainHost::host(), &missing)) << missing;
    open({});
  }

  void open(PortSpec spec) {
    port.reset();
    spec.kind = "verbs";
    spec.target = FakeDevice::kName;
    spec.addresses = {IpAddress::from_v4(0x0a090001)};
    spec.buffer_memory = kBuffers * packet::FramePool::kLarge.element;
    std::string problem;
    port = VerbsPort::open(spec, problem);
    ASSERT_NE(port, nullptr) << problem;
    await_link(LinkState::kUp);
  }

  // Its own thread sets it.
  void await_link(LinkState state) const {
    while (port->link() != state) std::this_thread::yield();
  }

  std::vector<Packet*> frames(std::size_t count, const std::string& text) const {
    std::vector<Packet*> made(count);
    EXPECT_EQ(port->alloc(0, made), count);
    for (std::size_t i = 0; i < count; i++) {
      const std::string bytes = text + std::to_string(i);
      std::memcpy(made[i]->data, bytes.data(), bytes.size());
      made[i]->len = made[i]->frame_len = static_cast<std::uint32_t>(bytes.size());
    }
    return made;
  }

  /// What the port hands up at one look.
  std::vector<std::string> received() const {
    std::vector<Packet*> got(64);
    got.resize(port->receive(0, got));
    std::vector<std::string> texts;
    for (const Packet* frame : got) texts.emplace_back(reinterpret_cast<const char*>(frame->data), frame->len);
    port->free(got);
    return texts;
  }

  /// All that neither the pool nor the device has is lost.
  void expect_no_buffer_lost() const {
    EXPECT_EQ(port->stats().buffers_free + device.receives() + device.sends(), port->stats().buffers_total);
  }

  FakeDevice device;
  std::unique_ptr<VerbsPort> port;
};

TEST_F(VerbsPortTest, Mtu_IsTheWiresWhereTheDeviceTellsIt) {
  EXPECT_EQ(port->caps().mtu, 1500U);
  for (const auto& [wire, asked, used] : {std::array{4000U, 0U, 4000U},
                                          {1400U, 0U, 1400U},
                                          {1400U, 1500U, 1400U},
                                          {4000U, 1300U, 1300U},
                                          {9000U, 0U, kBuffer}}) {
    device.mtu = wire;
    PortSpec spec;
    spec.mtu = asked;
    open(spec);
    EXPECT_EQ(port->caps().mtu, used) << wire << " " << asked;
  }
}

TEST_F(VerbsPortTest, Frames_ManyTimesTheQueuesDepth_PassInOrder) {
  std::size_t expected = 0;
  for (int round = 0; round < 40; round++) {
    ASSERT_EQ(port->send(0, frames(30, "out")), 30U);
    device.send_all();
    for (int i = 0; i < 30; i++) ASSERT_TRUE(device.arrive("in" + std::to_string(expected + i)));
    for (const std::string& text : received()) EXPECT_EQ(text, "in" + std::to_string(expected++));
  }
  EXPECT_EQ(expected, 1200U);
  ASSERT_EQ(device.sent.size(), 1200U);
  EXPECT_EQ(device.sent.back(), "out29");
  EXPECT_EQ(port->stats().tx_frames, 1200U);
  expect_no_buffer_lost();
}

TEST_F(VerbsPortTest, Send_QueueFull_TakesAPrefix) {
  const std::vector<Packet*> many = frames(200, "out");
  const std::size_t taken = port->send(0, many);
  EXPECT_EQ(taken, 128U);  // a quarter of the buffers
  EXPECT_EQ(port->stats().tx_full, 1U);
  device.send_all();
  EXPECT_EQ(port->send(0, std::span{many}.subspan(taken)), many.size() - taken);
  device.send_all();
  EXPECT_EQ(device.sent.size(), 200U);
  (void)received();
  expect_no_buffer_lost();
}

TEST_F(VerbsPortTest, Send_RefusedInTheMiddle_LosesTheRestAndGoesOn) {
  device.refuse_send_after = 3;
  ASSERT_EQ(port->send(0, frames(10, "out")), 10U);
  EXPECT_EQ(port->stats().tx_frames, 3U);
  EXPECT_EQ(port->stats().tx_dropped, 7U);
  device.refuse_send_after.reset();
  (void)received();  // repairs
  EXPECT_EQ(port->stats().reopened, 1U);
  expect_no_buffer_lost();
  ASSERT_EQ(port->send(0, frames(1, "again")), 1U);
  device.send_all();
  EXPECT_EQ(device.sent.back(), "again0");
  (void)received();
  expect_no_buffer_lost();
}

TEST_F(VerbsPortTest, Failure_CompletionsLeftBehind_SpeakOfNothingAnyMore) {
  ASSERT_EQ(port->send(0, frames(10, "out")), 10U);
  for (int i = 0; i < 5; i++) ASSERT_TRUE(device.arrive("before"));
  device.fail();
  for (int look = 0; look < 4; look++) (void)received();
  EXPECT_EQ(port->stats().reopened, 1U);
  expect_no_buffer_lost();
  for (int i = 0; i < 50; i++) ASSERT_TRUE(device.arrive("after" + std::to_string(i)));
  const std::vector<std::string> texts = received();
  ASSERT_EQ(texts.size(), 50U);
  for (std::size_t i = 0; i < texts.size(); i++) EXPECT_EQ(texts[i], "after" + std::to_string(i));
  EXPECT_EQ(port->stats().rx_dropped, 0U);
  EXPECT_EQ(port->stats().reopened, 1U);
  expect_no_buffer_lost();
}

TEST_F(VerbsPortTest, DeviceTakenAway_LinkDownAndItsMemoryUntouched) {
  const std::size_t posted = device.receives(), free = port->stats().buffers_free;
  device.disappear();
  await_link(LinkState::kDown);
  for (int look = 0; look < 3; look++) EXPECT_TRUE(received().empty());
  EXPECT_EQ(device.receives(), posted);
  EXPECT_EQ(port->stats().buffers_free, free);
  EXPECT_EQ(port->stats().reopened, 0U);
  EXPECT_EQ(port->send(0, frames(2, "out")), 2U);
  EXPECT_EQ(port->stats().tx_dropped, 2U);
  EXPECT_EQ(device.sends(), 0U);
}

// A card's port, too, says "disabled" where there is no carrier: no reason to leave it to another process.
TEST_F(VerbsPortTest, NoCarrier_IsNotForbidden) {
  device.carrier = false;
  device.disappear();
  await_link(LinkState::kDown);
  (void)port->arm(0);
  EXPECT_FALSE(port->forbidden());
}

TEST_F(VerbsPortTest, Armed_AFrameMakesTheDescriptorReadable) {
  pollfd item{port->wait_descriptor(0), POLLIN, 0};
  while (!port->arm(0)) (void)received();
  EXPECT_EQ(poll(&item, 1, 0), 0);
  ASSERT_TRUE(device.arrive("one"));
  EXPECT_EQ(poll(&item, 1, 0), 1);
  port->disarm(0);
  EXPECT_EQ(poll(&item, 1, 0), 0);
  EXPECT_EQ(received(), std::vector<std::string>{"one"});
}

TEST_F(VerbsPortTest, Armed_AFailureMakesTheDescriptorReadable) {
  while (!port->arm(0)) (void)received();
  device.fail();
  pollfd item{port->wait_descriptor(0), POLLIN, 0};
  EXPECT_EQ(poll(&item, 1, 0), 1);
  port->disarm(0);
  (void)received();
  while (!port->arm(0)) (void)received();
  ASSERT_TRUE(device.arrive("again"));
  EXPECT_EQ(poll(&item, 1, 0), 1);
}

TEST_F(VerbsPortTest, Closed_NoDescriptorStaysOwned) {
  EXPECT_TRUE(PlainHost::owned().contains(device.channel()));
  port.reset();
  EXPECT_FALSE(PlainHost::owned().contains(device.channel()));
}

}  // namespace
}  // namespace bypass::verbs
