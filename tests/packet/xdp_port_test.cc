// An XdpPort on a tap interface in the test's own network namespace. A process that may not make one, or load programs,
// skips these cases.
#include "backends/packet/xdp/xdp_port.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_tun.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backends/packet/flows/bpf.h"
#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "network_namespace.h"

namespace bypass::packet {
namespace {

constexpr const char* kName = "tap0";

Descriptor make_tap() {
  Descriptor tap(open("/dev/net/tun", O_RDWR | O_CLOEXEC));
  ifreq request{};
  std::strcpy(request.ifr_name, kName);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  return tap.is_open() && ioctl(tap.get(), TUNSETIFF, &request) == 0 ? std::move(tap) : Descriptor();
}

// Another program's AF_XDP socket. It has the interface's queue, and no XDP program is there.
class Stranger {
 public:
  Stranger() : socket_(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)) {
    xdp_umem_reg memory{};
    memory.addr = reinterpret_cast<std::uint64_t>(memory_);
    memory.len = kBytes;
    memory.chunk_size = 4096;
    set(XDP_UMEM_REG, &memory, sizeof memory);
    const int entries = 64;
    for (const int ring : {XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING})
      set(ring, &entries, sizeof entries);
    sockaddr_xdp address{};
    address.sxdp_family = AF_XDP;
    address.sxdp_ifindex = if_nametoindex(kName);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
        << std::strerror(errno);
  }
  ~Stranger() { munmap(memory_, kBytes); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

 private:
  static constexpr std::size_t kBytes = 64 * 4096;

  void set(int option, const void* value, socklen_t size) {
    EXPECT_EQ(setsockopt(socket_.get(), SOL_XDP, option, value, size), 0) << option << ": " << std::strerror(errno);
  }

  void* const memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Descriptor socket_;
};

std::optional<Stranger> stranger;
int waits = 0;

int end_stranger(pollfd* fds, nfds_t count, int timeout) {
  stranger.reset();
  return ::poll(fds, count, timeout);
}

int count_wait(pollfd*, nfds_t, int timeout) {
  waits += timeout;
  return 0;
}

class XdpPortTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(bind_libc(&PlainHost::host(), &missing)) << missing;
    if (const std::string lacks = missing_capabilities(); !lacks.empty()) GTEST_SKIP() << "programs take " << lacks;
    waits = 0;
  }
  void TearDown() override { stranger.reset(); }

  // Runs in a network namespace that has the interface.
  static void inside(const std::function<void()>& test) {
    const std::string lacks = in_network_namespace([&]() -> std::string {
      const Descriptor tap = make_tap();
      if (!tap.is_open()) return std::string("no tap interface: ") + std::strerror(errno);
      test();
      return "";
    });
    if (!lacks.empty()) GTEST_SKIP() << lacks;
  }

  static std::unique_ptr<XdpPort> open_port(std::string& problem) {
    PortSpec spec;
    spec.kind = "af_xdp";
    spec.target = kName;
    spec.addresses = {IpAddress::from_v4(0x0a000001)};
    return XdpPort::open(spec, problem);
  }
};

// The kernel gives the interface's queue back some time after the process that had it has ended.
TEST_F(XdpPortTest, WaitsForAQueueThatIsAboutToBeFree) {
  inside([] {
    stranger.emplace();
    libc.poll = end_stranger;
    std::string problem;
    EXPECT_NE(open_port(problem), nullptr) << problem;
    EXPECT_FALSE(stranger.has_value());
  });
}

TEST_F(XdpPortTest, GivesUpWaitingForAQueueThatIsInUse) {
  inside([] {
    stranger.emplace();
    libc.poll = count_wait;
    std::string problem;
    EXPECT_EQ(open_port(problem), nullptr);
    EXPECT_NE(problem.find("another XDP program or socket is at this interface"), std::string::npos) << problem;
    EXPECT_GE(waits, 500) << "ms";
    EXPECT_LE(waits, 2'000) << "ms";
  });
}

TEST_F(XdpPortTest, DoesNotWaitWhereThereIsAnotherProgram) {
  inside([] {
    std::string problem;
    const auto port = open_port(problem);
    ASSERT_NE(port, nullptr) << problem;
    libc.poll = count_wait;
    EXPECT_EQ(open_port(problem), nullptr);
    EXPECT_NE(problem.find("another XDP program or socket is at this interface"), std::string::npos) << problem;
    EXPECT_EQ(waits, 0) << "ms";
  });
}

}  // namespace
}  // namespace bypass::packet
