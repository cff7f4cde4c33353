#include "config/port_check.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "config/environment.h"

namespace bypass::runtime {
namespace {

std::string checked(const char* kind, const std::string& target) {
  PortConfig port;
  port.kind = kind;
  port.target = target;
  return quick_check(port);
}

TEST(PortCheck, SocketFolder_MustBeThere) {
  EXPECT_EQ(checked("vhost", "/nonexistent/wire"), "the folder /nonexistent: No such file or directory");
  EXPECT_EQ(checked("virtio", "/nonexistent/wire"), "the folder /nonexistent: No such file or directory");
  EXPECT_EQ(checked("vhost", "/dev/null/wire"), "/dev/null is no folder");
  EXPECT_NE(checked("vhost", "/tmp/"), "");
  EXPECT_EQ(checked("virtio", "/tmp/nobody-serves-it-yet"), "");
  EXPECT_EQ(checked("virtio", "/dev/null"), "is no socket");
  EXPECT_EQ(checked("vhost", "/dev/null"), "is no socket");
}

TEST(PortCheck, SocketFolder_MustTakeAFileOfTheServingEnd) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  char folder[] = "/tmp/bypass-port-check-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  chmod(folder, 0500);
  const std::string path = std::string(folder) + "/wire";
  EXPECT_EQ(checked("vhost", path), "no socket can be made in " + std::string(folder) + ": Permission denied");
  EXPECT_EQ(checked("virtio", path), "");
  rmdir(folder);
}

// A folder like /tmp without its sticky bit. A folder further up counts as much.
TEST(PortCheck, SocketFolder_MustBeClosedToOthers) {
  char top[] = "/tmp/bypass-port-check-XXXXXX";
  ASSERT_NE(mkdtemp(top), nullptr);
  const std::string inner = std::string(top) + "/inner", path = inner + "/wire";
  ASSERT_EQ(mkdir(inner.c_str(), 0755), 0);
  for (const char* kind : {"vhost", "virtio"}) {
    for (const std::string& folder : {std::string(top), inner}) {
      for (const mode_t open : {0777U, 0775U}) {
        ASSERT_EQ(chown(folder.c_str(), geteuid(), open == 0775 && geteuid() == 0 ? 100 : getegid()), 0);
        if (open == 0775 && geteuid() != 0) continue;
        ASSERT_EQ(chmod(folder.c_str(), open), 0);
        EXPECT_EQ(
            checked(kind, path),
            "others may write into the folder " + folder +
                ", and put a socket at this path; accepted is a folder of one's own ($XDG_RUNTIME_DIR, or one below "
                "/run that others may not write into)");
        ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
        EXPECT_EQ(checked(kind, path), "") << "each removes his own files alone";
        ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
        EXPECT_EQ(checked(kind, path), "");
      }
    }
  }
  rmdir(inner.c_str());
  rmdir(top);
}

TEST(PortCheck, SocketFolder_OfAnotherUserIsHisWhoIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone gives folders away";
  char folder[] = "/tmp/bypass-port-check-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  ASSERT_EQ(chown(folder, 65534, 65534), 0);
  const std::string path = std::string(folder) + "/wire";
  EXPECT_NE(checked("virtio", path).find("is that of the user 65534"), std::string::npos) << checked("virtio", path);
  EXPECT_EQ(checked("virtio", path + ",peer=65534"), "");
  EXPECT_EQ(checked("virtio", path + ",peer=nobody"), "");
  EXPECT_NE(checked("virtio", path + ",peer=65533"), "");
  EXPECT_EQ(
      checked("virtio", path + ",peer=no-such-user"),
      "peer=no-such-user: there is no such user in /etc/passwd; accepted is a name from there, or a user's number");
  rmdir(folder);
}

TEST(PortCheck, InterfaceAndDevice_MustBeThere) {
  EXPECT_NE(checked("af_packet", "bp-nosuch").find("no network interface"), std::string::npos);
  EXPECT_NE(checked("netdev", "bp-nosuch").find("no network interface"), std::string::npos);
  EXPECT_NE(checked("af_xdp", "bp-nosuch").find("no network interface"), std::string::npos);
  EXPECT_EQ(checked("af_packet", "lo"), "");
  for (const auto& [kind, target] : {std::pair("pci", "fff0:ff:1f.7"), std::pair("dpdk", "fff0:ff:1f.7,iova=1")})
    EXPECT_EQ(checked(kind, target), "no such device (see: lspci -D)") << kind;
  EXPECT_EQ(checked("dpdk", "net_ring0"), "") << "what only the plugin knows";
}

TEST(PortCheck, AddressThatTheKernelHasOnTheInterface_IsRefused) {
  PortConfig port;
  port.kind = "af_packet";
  port.target = "lo";
  port.addresses = {{IpAddress::from_v4(0x7f000001), 8}};
  EXPECT_NE(quick_check(port).find("ip addr del 127.0.0.1/8 dev lo"), std::string::npos) << quick_check(port);
  port.addresses = {{IpAddress::from_v4(0x7f000203), 8}};
  EXPECT_EQ(quick_check(port), "");
}

TEST(PortCheck, RdmaDevice_IsThereOrASoftwareOne) {
  EXPECT_NE(checked("verbs", "bp-nosuch:1").find("no RDMA device of that name"), std::string::npos);
  EXPECT_EQ(checked("verbs", "soft0"), "");
  for (const char* const other : {"softy", "soft", "soft0x:1"})
    EXPECT_NE(checked("verbs", other).find("no RDMA device of that name"), std::string::npos) << other;
}

TEST(PortCheck, SoftwareDevice_IsAsGoodAsItsWire) {
  const Config config = from_environment({"BYPASS_PORT=verbs:soft1", "BYPASS_ADDR=10.9.0.1/24",
                                          "BYPASS_SOFT=vhost:/tmp/a;vhost:/nonexistent/wire",
                                          "BYPASS_SOFT_ADDR=10.7.0.1/24;10.8.0.1/24"});
  ASSERT_EQ(messages(config), "");
  PortConfig port = config.ports.at(0);
  EXPECT_EQ(quick_check(config, port),
            "BYPASS_SOFT=vhost:/nonexistent/wire: the folder /nonexistent: No such file or directory");
  port.target = "soft0:1";
  EXPECT_EQ(quick_check(config, port), "");
}

TEST(PortCheck, Problem_BeginsWithVariableAndValue) {
  const Config config = from_environment({"BYPASS_PORT=dpdk:net_nosuch0", "BYPASS_ADDR=10.9.0.1/24"});
  const PortConfig& port = config.ports.at(0);
  EXPECT_EQ(named_problem(config, port, "no driver"), "BYPASS_PORT=dpdk:net_nosuch0: no driver");
  EXPECT_EQ(named_problem(config, port, "dpdk:net_nosuch0: no driver"), "BYPASS_PORT=dpdk:net_nosuch0: no driver");
  EXPECT_EQ(named_problem(config, port, "BYPASS_HUGEPAGES=on: none"), "BYPASS_HUGEPAGES=on: none");
  const Config of_file = from_file("port = \"tap:a\"\naddr = \"10.9.0.1/24\"\n");
  EXPECT_EQ(named_problem(of_file, of_file.ports.at(0), "is gone"), "port=tap:a: is gone");
}

}  // namespace
}  // namespace bypass::runtime
