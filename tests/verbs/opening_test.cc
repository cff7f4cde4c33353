// The messages of a port that does not open, and what it does before a device is opened.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>

#include "fixture.h"

namespace bypass::verbs {
namespace {

class OpeningTest : public PortFixture {
 protected:
  /// The opening fails, and everything that was made is given back.
  std::string refusal(const std::string& target = FakeDevice::kName) {
    PortSpec spec;
    spec.target = target;
    spec.hugepages = Hugepages::kOff;  // which the size of the frames depends on
    try_to_open(spec);
    EXPECT_EQ(port, nullptr);
    EXPECT_EQ(device.alive(), 0);
    return problem;
  }
};

TEST_F(OpeningTest, NoSuchDevice_NamesThoseThatAre) {
  EXPECT_EQ(refusal("mlx5_7"), "no RDMA device of that name; there are: fake0");
}

TEST_F(OpeningTest, NoDeviceAtAll_SaysHowToHaveOne) {
  device.disappear();
  EXPECT_EQ(refusal(),
            "no RDMA device of that name; this process sees none (is its driver's module loaded, mlx5_ib say?)");
  device.soft = true;
  EXPECT_EQ(refusal(),
            "no RDMA device of that name; this process sees none; a software device is made by BYPASS_SOFT=WIRE");
}

TEST_F(OpeningTest, NoRdmaInTheKernel_SaysWhichModule) {
  device.errors.list = ENOSYS;
  EXPECT_EQ(refusal(),
            "no RDMA devices at all: Function not implemented; the kernel's ib_uverbs is not loaded, it seems "
            "(modprobe ib_uverbs)");
}

TEST_F(OpeningTest, DeviceOfOthers_SaysWhichFiles) {
  device.errors.open = EACCES;
  EXPECT_EQ(refusal(),
            "the device cannot be opened: Permission denied; this user must be able to write to "
            "/dev/infiniband/uverbs*");
  device.errors.open = EIO;
  EXPECT_EQ(refusal(), "the device cannot be opened: Input/output error");
}

// The errno does not speak of the wire below.
TEST_F(OpeningTest, SoftwareDevice_SaysWhatItsLibrarySays) {
  device.errors.open = ENODEV;
  device.problem = "BYPASS_SOFT=vhost:/nosuch/wire: the folder /nosuch: No such file or directory";
  EXPECT_EQ(refusal(), "the device cannot be opened: " + device.problem);
}

TEST_F(OpeningTest, PortNumber_SaysWhichThereAre) {
  EXPECT_EQ(refusal("fake0:2"), "the device has no port 2; accepted is 1");
  device.can.ports = 2;
  EXPECT_EQ(refusal("fake0:3"), "the device has no port 3; accepted is 1 to 2");
  for (const std::string text : {"0", "256", "x", "1x", "", "-1"})
    EXPECT_EQ(refusal("fake0:" + text), "'" + text + "' is no port of a device; accepted is a number from 1 on");
  PortSpec second;
  second.target = "fake0:2";
  open(second);
}

TEST_F(OpeningTest, WrongLinkLayer_SaysHowToChangeIt) {
  device.can.link_layer = IBV_LINK_LAYER_INFINIBAND;
  EXPECT_EQ(refusal(),
            "port 1's link layer is InfiniBand, which carries no frames; needed is Ethernet (a card that can "
            "be either is told so by its vendor's tool: mlxconfig set LINK_TYPE_P1=2)");
}

TEST_F(OpeningTest, LimitOfLockedMemory_SaysWhatItIsAndHowToRaiseIt) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit little{64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &little), 0);
  const std::string advice =
      "; the limit of locked memory is 64 KiB: raise it (ulimit -l unlimited, or "
      "LimitMEMLOCK=infinity of a service) or ask for less (BYPASS_PORT_MEMORY)";
  device.errors.register_memory = ENOMEM;
  EXPECT_EQ(refusal(), "4 MiB of frames cannot be registered: Cannot allocate memory" + advice);
  device.errors.register_memory = EPERM;  // where it is 0
  EXPECT_EQ(refusal(), "4 MiB of frames cannot be registered: Operation not permitted" + advice);
  device.errors.register_memory = EFAULT;
  EXPECT_EQ(refusal(), "4 MiB of frames cannot be registered: Bad address");
  device.errors.register_memory = 0;
  device.errors.create_cq = ENOMEM;
  EXPECT_EQ(refusal(), "no completion queue: Cannot allocate memory" + advice);
  device.errors.create_cq = 0;
  device.errors.create_qp = ENOMEM;
  EXPECT_EQ(refusal(), "no raw-packet queue pair: Cannot allocate memory" + advice);
  setrlimit(RLIMIT_MEMLOCK, &before);
}

TEST_F(OpeningTest, NoCapability_SaysWhich) {
  device.errors.create_qp = EPERM;
  EXPECT_EQ(refusal(),
            "no raw-packet queue pair: Operation not permitted; the process needs CAP_NET_RAW (run it as root, "
            "or as a service with AmbientCapabilities=CAP_NET_RAW)");
}

TEST_F(OpeningTest, NoRawPackets_SaysSoWhicheverWayTheDeviceRefuses) {
  const std::string advice =
      "; needed is a device that has them (a ConnectX card, say, or a software device: "
      "BYPASS_SOFT=WIRE and verbs:soft0)";
  device.errors.create_qp = EOPNOTSUPP;
  EXPECT_EQ(refusal(), "the device has no raw-packet queue pairs: Operation not supported" + advice);
  device.errors.create_qp = EINVAL;
  EXPECT_EQ(refusal(), "the device has no raw-packet queue pairs: Invalid argument" + advice);
  device.errors.create_qp = 524;  // the kernel's own ENOTSUPP, which has no text
  EXPECT_EQ(refusal(), "the device has no raw-packet queue pairs: error 524" + advice);
}

TEST_F(OpeningTest, QueuePairThatDoesNotStart_GivesTheReason) {
  device.errors.modify_qp = EIO;
  EXPECT_EQ(refusal(), "the queue pair does not start: Input/output error");
}

// --- Forks

TEST_F(OpeningTest, KernelThatCopiesAtTheFork_NeedsNothing) {
  open();
  EXPECT_EQ(device.opening(), "open ");
}

TEST_F(OpeningTest, KernelThatDoesNot_IsPreparedBeforeTheDeviceIsOpened) {
  device.fork_status = IBV_FORK_DISABLED;
  open();
  EXPECT_EQ(device.opening(), "fork_init open ");
}

TEST_F(OpeningTest, SoftwareDevice_HasNoPagesThatAreTheDevices) {
  device.fork_status = IBV_FORK_DISABLED;
  device.soft = true;
  open();
  EXPECT_EQ(device.opening(), "open ");
}

TEST_F(OpeningTest, PreparedInVain_IsSaid) {
  device.fork_status = IBV_FORK_DISABLED;
  device.errors.fork_init = EINVAL;  // the program has registered memory already
  open();
  EXPECT_NE(PlainHost::said().find("verbs:fake0: a program that forks may lose the device: ibv_fork_init: Invalid "
                                   "argument"),
            std::string::npos);
}

}  // namespace
}  // namespace bypass::verbs
