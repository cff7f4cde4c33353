// A device that is lost: its port's link is down, the device is looked for now and then, and all goes on when it is
// back.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <string>
#include <vector>

#include "fixture.h"
#include "sleeps.h"

namespace bypass::verbs {
namespace {

/// A search for an interface finds none.
class NoInterface {
 public:
  NoInterface() { packet::libc.ioctl = refuse; }
  NoInterface(const NoInterface&) = delete;
  NoInterface& operator=(const NoInterface&) = delete;
  ~NoInterface() { packet::libc.ioctl = ioctl; }

 private:
  static int refuse(int, unsigned long, ...) {
    errno = ENODEV;
    return -1;
  }
};

const FlowSpec kListener{IPPROTO_TCP, {IpAddress::from_v4(0x0a090001), 80}, {}};

class LostDeviceTest : public PortFixture {
 protected:
  void SetUp() override {
    PortFixture::SetUp();
    sleeps = std::make_unique<Sleeps>();
    open();
    await_link(LinkState::kUp);
  }
  void TearDown() override {
    port.reset();
    sleeps.reset();
  }

  static PortSpec beside_the_kernel() {
    PortSpec shared;
    shared.share_interface = true;
    shared.interface = "lo";
    return shared;
  }
  /// Waits until the data path has left, everything is given back, and the first look has found nothing.
  void lose() {
    device.disappear();
    ASSERT_EQ(nth_sleep(1), 10);
    EXPECT_EQ(port->link(), LinkState::kDown);
    (void)received();
    EXPECT_EQ(device.alive(), 0);
  }
  /// The limit of the thread's n-th limited sleep, in ms.
  int nth_sleep(std::size_t n) const {
    while (sleeps->count() < n) {
      (void)received();
      std::this_thread::yield();
    }
    return sleeps->last();
  }
  /// Ends the pause, and waits until the thread is in the next one.
  int look_again() const {
    const std::size_t before = sleeps->count();
    sleeps->end();
    return nth_sleep(before + 1);
  }
  /// Flows that count as lost: one that was there before, and as many as were asked for meanwhile.
  std::uint64_t lost_when_refused_at_the_return(std::uint16_t meanwhile) {
    open(beside_the_kernel());
    await_link(LinkState::kUp);
    EXPECT_TRUE(port->steer(kListener, true));
    lose();
    for (std::uint16_t number = 1000; number < 1000 + meanwhile; number++)
      EXPECT_TRUE(port->steer({IPPROTO_TCP, {IpAddress::from_v4(0x0a090001), number}, {}}, true));
    device.errors.create_flow = EBUSY;
    device.come_back();
    sleeps->end();
    await_link(LinkState::kUp);
    EXPECT_EQ(device.flows(), 0);
    const std::uint64_t lost = port->take_steer_lost();
    EXPECT_EQ(port->take_steer_lost(), 0U);
    return lost;
  }

  std::unique_ptr<Sleeps> sleeps;
};

TEST_F(LostDeviceTest, Gone_LinkDownFramesDroppedAndAllBuffersBack) {
  std::vector<Packet*> kept = frames(2, "out");
  ASSERT_EQ(port->send(0, frames(3, "unsent")), 3U);
  lose();
  EXPECT_EQ(port->link(), LinkState::kDown);
  EXPECT_EQ(port->stats().buffers_free + kept.size(), port->stats().buffers_total);
  EXPECT_EQ(port->send(0, kept), 2U);
  EXPECT_EQ(port->stats().tx_dropped, 2U);
  EXPECT_EQ(port->stats().reopened, 0U);
  EXPECT_TRUE(received().empty());
}

TEST_F(LostDeviceTest, Back_EverythingIsMadeAnewAndFramesFlow) {
  const int alive = device.alive();
  lose();
  EXPECT_EQ(look_again(), 20);
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(device.alive(), alive);
  EXPECT_EQ(port->link_ups(), 2U);
  EXPECT_EQ(port->stats().reopened, 1U);
  EXPECT_EQ(port->stats().link_down, 1U);
  expect_no_buffer_lost();
  ASSERT_EQ(port->send(0, frames(1, "out")), 1U);
  device.send_all();
  EXPECT_EQ(device.sent.back(), "out0");
  ASSERT_TRUE(device.arrive("in"));
  EXPECT_EQ(received(), std::vector<std::string>{"in"});
  expect_no_buffer_lost();
}

// Each sleeper sleeps on one descriptor, which works for the new device, too.
TEST_F(LostDeviceTest, Back_TheWakeUpDescriptorHearsOfItsFrames) {
  pollfd item{port->wait_descriptor(0), POLLIN, 0};
  lose();
  device.come_back();
  while (!port->arm(0)) (void)received();
  EXPECT_EQ(poll(&item, 1, 0), 0);
  sleeps->end();
  EXPECT_EQ(poll(&item, 1, -1), 1);  // to take it over
  await_link(LinkState::kUp);
  ASSERT_EQ(port->wait_descriptor(0), item.fd);
  while (!port->arm(0)) (void)received();
  EXPECT_EQ(poll(&item, 1, 0), 0);
  ASSERT_TRUE(device.arrive("in"));
  EXPECT_EQ(poll(&item, 1, 0), 1);
}

TEST_F(LostDeviceTest, Back_SteersAsItDid) {
  EXPECT_EQ(device.flows(), 2);  // our address, and broadcasts
  lose();
  EXPECT_EQ(device.flows(), 0);
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(device.flows(), 2);
}

// Sockets come and go meanwhile.
TEST_F(LostDeviceTest, BackBesideTheKernel_SteersWhatIsWantedNow) {
  open(beside_the_kernel());
  await_link(LinkState::kUp);
  const auto listener = [](std::uint16_t number) {
    return FlowSpec{IPPROTO_TCP, {IpAddress::from_v4(0x0a090001), number}, {}};
  };
  for (const std::uint16_t number : {80, 81}) EXPECT_TRUE(port->steer(listener(number), true));
  const int made = device.flows_made();
  lose();
  EXPECT_EQ(device.flows(), 0);
  EXPECT_TRUE(port->steer(listener(80), false));
  for (const std::uint16_t number : {90, 91, 92}) EXPECT_TRUE(port->steer(listener(number), true));
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(device.flows(), 4);
  EXPECT_EQ(device.flows_made(), made + 4);  // none, not for a moment, for the one that has ended
  for (const std::uint16_t number : {81, 90, 91, 92}) EXPECT_TRUE(port->steer(listener(number), false));
  EXPECT_EQ(device.flows(), 0);
}

// The kernel refuses requests to a dead device before any thread has read of its death.
TEST_F(LostDeviceTest, BackBesideTheKernel_SteersWhatTheDyingDeviceWasAsked) {
  open(beside_the_kernel());
  await_link(LinkState::kUp);
  device.errors.create_flow = EIO;
  EXPECT_TRUE(port->steer(kListener, true));  // once it is back
  device.errors.create_flow = 0;
  lose();
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(device.flows(), 1);
  EXPECT_TRUE(port->steer(kListener, false));
  EXPECT_EQ(device.flows(), 0);
}

TEST_F(LostDeviceTest, BackBesideTheKernel_SteersWhatWasAskedBeforeTheDataPathLooked) {
  open(beside_the_kernel());
  await_link(LinkState::kUp);
  const int made = device.flows_made();
  device.disappear();
  while (port->link() == LinkState::kUp) std::this_thread::yield();
  while (port->arm(0)) std::this_thread::yield();
  EXPECT_TRUE(port->steer(kListener, true));
  EXPECT_EQ(device.flows_made(), made);  // it is not asked any more
  ASSERT_EQ(nth_sleep(1), 10);
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(device.flows(), 1);
}

// Each rule costs a card's firmware up to a millisecond. The shard does not wait for that.
TEST_F(LostDeviceTest, BackBesideTheKernel_ManyRulesAreMadeByTheDevicesThread) {
  open(beside_the_kernel());
  await_link(LinkState::kUp);
  lose();
  for (std::uint16_t number = 1000; number < 1100; number++) {
    const FlowSpec flow{IPPROTO_TCP, {IpAddress::from_v4(0x0a090001), number}, {}};
    EXPECT_TRUE(port->steer(flow, true));
  }
  device.flow_threads.clear();
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(device.flows(), 100);
  EXPECT_EQ(device.flow_threads.count(std::this_thread::get_id()), 0U);
  EXPECT_EQ(port->take_steer_lost(), 0U);
}

TEST_F(LostDeviceTest, BackBesideTheKernel_RefusedByThen_IsCounted) {
  EXPECT_EQ(lost_when_refused_at_the_return(1), 2U);
}

TEST_F(LostDeviceTest, BackBesideTheKernel_ManyRefusedByThen_AreCounted) {
  EXPECT_EQ(lost_when_refused_at_the_return(50), 51U);
}

// A program that goes on trying while the link is down asks for thousands of rules.
TEST_F(LostDeviceTest, BackBesideTheKernel_NothingIsAskedForWhatHasEndedMeanwhile) {
  open(beside_the_kernel());
  await_link(LinkState::kUp);
  EXPECT_TRUE(port->steer(kListener, true));
  const int made = device.flows_made();
  lose();
  for (std::uint16_t number = 1000; number < 1100; number++) {
    const FlowSpec brief{IPPROTO_TCP, {IpAddress::from_v4(0x0a090001), number}, {}};
    EXPECT_TRUE(port->steer(brief, true));
    EXPECT_TRUE(port->steer(kListener, false));
    EXPECT_TRUE(port->steer(brief, false));
    EXPECT_TRUE(port->steer(kListener, true));
  }
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(device.flows(), 1);
  EXPECT_EQ(device.flows_made(), made + 1);
}

// A driver makes the RDMA device before the interface, and udev renames that later.
TEST_F(LostDeviceTest, BackWithoutTheKernelsInterface_IsLookedForUntilBothAreThere) {
  open(beside_the_kernel());
  await_link(LinkState::kUp);
  lose();
  {
    const NoInterface gone;
    device.come_back();
    EXPECT_EQ(look_again(), 20);
    EXPECT_EQ(look_again(), 40);
    EXPECT_EQ(device.alive(), 0);
    EXPECT_EQ(port->stats().reopened, 0U);
    EXPECT_NE(PlainHost::said().find("the device is not back yet: no network interface lo: No such device"),
              std::string::npos);
  }
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(port->stats().reopened, 1U);
}

// The thread reads the link's state meanwhile. Its result counts.
TEST_F(LostDeviceTest, LeftWhileTheLinkIsLookedAt_IsDown) {
  struct Leaver : DeviceEvents {
    void on_link(bool up) override {
      if (up) watch->leave();
      told.push_back(up);
    }
    void on_queue_failure() override {}
    void on_stage() override {}
    bool can_come_back(std::string&) override { return true; }
    DeviceWatch* watch = nullptr;
    std::vector<bool> told;
  } leaver;
  port.reset();
  std::vector<std::byte> memory(4096);
  Device opened;
  ASSERT_TRUE(opened.open(FakeDevice::kName, problem) && opened.make_queues(memory, 64, problem)) << problem;
  DeviceWatch watch(opened, leaver);
  leaver.watch = &watch;
  ASSERT_TRUE(watch.start(problem)) << problem;
  while (watch.stage() != DeviceWatch::Stage::kBack) std::this_thread::yield();
  watch.stop();
  EXPECT_EQ(leaver.told, (std::vector<bool>{true, false}));
}

TEST_F(LostDeviceTest, GoneForGood_LooksEverMoreSeldomAndNobodySpins) {
  lose();
  int expected = 10;
  for (int look = 3; look < 20; look++) {
    expected = std::min(2 * expected, 1000);
    EXPECT_EQ(look_again(), expected);
    EXPECT_EQ(device.looks(), look);
    EXPECT_TRUE(received().empty());
  }
  while (!port->arm(0)) (void)received();
  pollfd item{port->wait_descriptor(0), POLLIN, 0};
  EXPECT_EQ(poll(&item, 1, 0), 0);
  EXPECT_EQ(device.looks(), 19);
  const std::string said = PlainHost::said();
  EXPECT_NE(said.find("the device is not back yet: no RDMA device of that name"), std::string::npos) << said;
}

TEST_F(LostDeviceTest, FailsAgainAtOnce_IsLookedForEverMoreSeldom) {
  lose();
  device.come_back();
  int expected = 10;
  for (int time = 0; time < 9; time++) {
    const std::size_t before = sleeps->count();
    sleeps->end();
    await_link(LinkState::kUp);
    EXPECT_EQ(nth_sleep(before + 1), 1000);  // whether it lasts
    device.report(IBV_EVENT_DEVICE_FATAL);
    expected = std::min(2 * expected, 1000);
    EXPECT_EQ(nth_sleep(before + 2), expected);
    EXPECT_EQ(port->link(), LinkState::kDown);
  }
}

TEST_F(LostDeviceTest, LostAgainMuchLater_IsLookedForAtOnce) {
  lose();
  device.come_back();
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(nth_sleep(2), 1000);
  sleeps->end();  // it has lasted
  const int looks = device.looks();
  device.report(IBV_EVENT_DEVICE_FATAL);
  while (port->stats().reopened < 2) (void)received();
  EXPECT_EQ(device.looks(), looks + 1);
}

TEST_F(LostDeviceTest, FatalEvents_AllIsMadeAnewAtOnce) {
  std::uint64_t reopened = 0;
  for (const ibv_event_type type : {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR}) {
    device.report(type);
    while (port->stats().reopened == reopened) (void)received();
    await_link(LinkState::kUp);
    reopened++;
    EXPECT_EQ(port->stats().reopened, reopened);
    EXPECT_EQ(nth_sleep(reopened), 1000);
    sleeps->end();
    ASSERT_TRUE(device.arrive("in"));
    EXPECT_EQ(received(), std::vector<std::string>{"in"});
    expect_no_buffer_lost();
  }
}

// The device may write to its buffers until it is closed.
TEST_F(LostDeviceTest, QueuePairThatCannotBeReset_AllIsMadeAnew) {
  device.errors.modify_qp = EIO;
  device.fail();
  EXPECT_EQ(nth_sleep(1), 10);  // made anew in vain
  EXPECT_EQ(port->link(), LinkState::kDown);
  EXPECT_EQ(device.alive(), 0);
  (void)received();
  EXPECT_EQ(port->stats().buffers_free, port->stats().buffers_total);
  device.errors.modify_qp = 0;
  sleeps->end();
  await_link(LinkState::kUp);
  EXPECT_EQ(port->stats().reopened, 1U);
  expect_no_buffer_lost();
}

TEST_F(LostDeviceTest, QueuePairThatTakesNothing_IsNotRepairedForEver) {
  device.refuse_receives = true;
  device.report(IBV_EVENT_QP_FATAL);
  await_link(LinkState::kDown);
  device.refuse_receives = false;
  EXPECT_GE(nth_sleep(1), 10);
  sleeps->end();
  await_link(LinkState::kUp);
  expect_no_buffer_lost();
  ASSERT_TRUE(device.arrive("in"));
  EXPECT_EQ(received(), std::vector<std::string>{"in"});
}

TEST_F(LostDeviceTest, ComesBackWithLess_IsNotTakenForTheSame) {
  port.reset();
  device.can.checksums = true;
  open();
  await_link(LinkState::kUp);
  const std::size_t before = sleeps->count();
  device.disappear();
  EXPECT_EQ(nth_sleep(before + 1), 10);
  device.can.checksums = false;
  device.come_back();
  EXPECT_EQ(look_again(), 20);
  EXPECT_EQ(device.alive(), 0);
  EXPECT_NE(PlainHost::said().find("it can do less than before"), std::string::npos);
  device.can.checksums = true;
  sleeps->end();
  await_link(LinkState::kUp);
}

TEST_F(LostDeviceTest, ClosedMeanwhile_EndsAtOnce) {
  lose();
  port.reset();
  EXPECT_EQ(device.alive(), 0);
}

TEST_F(LostDeviceTest, ClosedBeforeTheDataPathLooks_GivesAllBack) {
  device.report(IBV_EVENT_DEVICE_FATAL);
  while (port->link() == LinkState::kUp) std::this_thread::yield();
  port.reset();
  EXPECT_EQ(device.alive(), 0);
}

}  // namespace
}  // namespace bypass::verbs
