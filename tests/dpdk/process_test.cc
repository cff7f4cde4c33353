// What opening a port does to its process: nothing that the program could notice. It never ends the process.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>

#include "driver.h"

namespace bypass::test {
namespace {

void expect_error(const std::string& answer, const std::string& part) {
  EXPECT_EQ(answer.rfind("error", 0), 0U) << answer;
  EXPECT_NE(answer.find(part), std::string::npos) << answer;
}

// This also holds for what a driver does when it is loaded. The variables are counted here.
void open_and_close(const std::string& kind, const char* plugin) {
  Folder folder;
  Driver driver({}, plugin);
  const std::string before = driver.ask("process");
  int variables = 0;
  for (char** each = environ; *each != nullptr; each++) variables++;
  EXPECT_EQ(before.rfind("ok variables=" + std::to_string(variables) + " ", 0), 0U) << before;
  ASSERT_OK(driver.ask("open " + kind + " " + (folder / "w")));
  EXPECT_EQ(driver.ask("process"), before);
  EXPECT_OK(driver.ask("close"));
  EXPECT_EQ(driver.ask("process"), before);
  EXPECT_EQ(driver.ask("getopt"), "ok 98");  // 'b', behind the 'a' that was taken before
  srand(7);
  EXPECT_EQ(driver.ask("rand"), "ok " + std::to_string(rand()));  // no call has drawn a number or set a seed
  EXPECT_EQ(driver.errors(), "");
}

TEST(DpdkProcess, OpeningChangesNothing) {
  for (const char* kind : {"vhost", "virtio"}) open_and_close(kind, PLUGIN);
}

TEST(DpdkProcess, OpeningWithTheCardsDriversChangesNothing) {
  for (const char* kind : {"vhost", "virtio"}) open_and_close(kind, CARDS_PLUGIN);
}

// Ends the process at iopl(2) and ioperm(2).
void forbid_io_ports() {
  std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_iopl, 1, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioperm, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{filter.size(), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(126);
}

// DPDK's driver for virtio takes the right to all I/O ports of the machine when it is loaded. Children and programs
// that are started would have it, too.
TEST(DpdkProcess, NoRightToIoPortsIsTaken) {
  for (const char* plugin : {PLUGIN, CARDS_PLUGIN}) {
    Folder folder;
    Driver driver(forbid_io_ports, plugin);
    EXPECT_OK(driver.ask("open vhost " + (folder / "w")));
  }
}

// A wire loads nothing that only a card needs: no card's driver, and no library of such a driver.
TEST(DpdkProcess, AWireLoadsNothingOfACards) {
  Folder folder;
  Driver driver;
  ASSERT_OK(driver.ask("open vhost " + (folder / "w")));
  const std::string libraries = driver.ask("libraries");
  EXPECT_NE(libraries.find("libbypass-dpdk.so"), std::string::npos) << libraries;
  for (const char* part : {"cards", "ibverbs", "mlx", "xdp", "bpf", "elf", "libz", "pcap"})
    EXPECT_EQ(libraries.find(part), std::string::npos) << part << " in " << libraries;
}

// mlx5's driver is linked, and libibverbs is opened with the first card that needs it.
TEST(DpdkProcess, TheCardsPluginLoadsNoLibraryOfOneCards) {
  Driver driver({}, CARDS_PLUGIN);
  ASSERT_OK(driver.ask("open dpdk net_null0"));
  const std::string libraries = driver.ask("libraries");
  EXPECT_NE(libraries.find("libbypass-cards.so"), std::string::npos) << libraries;
  for (const char* part : {"ibverbs", "mlx"})
    EXPECT_EQ(libraries.find(part), std::string::npos) << part << " in " << libraries;
}

std::size_t threads_of(const Driver& driver) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(driver.pid()) + "/task");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// With the cards' drivers linked, a wire makes no further thread.
TEST(DpdkProcess, AWireBesideACardIsAsAnother) {
  std::size_t threads = 0;
  for (const char* plugin : {PLUGIN, CARDS_PLUGIN}) {
    Wire wire(plugin);
    wire.open();
    wire.vhost.say("echo");
    EXPECT_EQ(wire.virtio.ask("ping 100 60"), "ok 100 0");
    if (threads == 0) threads = threads_of(wire.vhost);
    EXPECT_EQ(threads_of(wire.vhost), threads) << plugin;
  }
}

TEST(DpdkProcess, ThroughAWholeConnection) {
  Wire wire;
  const std::string before = wire.vhost.ask("process");
  wire.open();
  wire.vhost.say("echo");
  EXPECT_EQ(wire.virtio.ask("ping 100 60"), "ok 100 0");
  EXPECT_EQ(wire.virtio.ask("process"), before);
  EXPECT_OK(wire.vhost.ask("stats"));
  EXPECT_OK(wire.vhost.hear());
  EXPECT_EQ(wire.vhost.ask("process"), before);
  EXPECT_EQ(wire.vhost.errors() + wire.virtio.errors(), "");
}

TEST(DpdkProcess, StaysSmall) {
  Wire wire;
  wire.open();
  constexpr long kMostKib = 64 * 1024;
  for (Driver* end : {&wire.vhost, &wire.virtio}) {
    const std::string answer = end->ask("resident");
    ASSERT_OK(answer);
    EXPECT_LE(std::atol(answer.c_str() + 3), kMostKib);
  }
}

TEST(DpdkProcess, AnOrdinaryUserCan) {
  if (geteuid() != 0) GTEST_SKIP() << "is an ordinary user already: every other test shows it";
  constexpr uid_t kNobody = 65534;
  const auto become_nobody = [] {
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(126);
  };
  Folder folder;
  Driver vhost(become_nobody), virtio(become_nobody);
  const std::string hello = vhost.ask("process");
  if (hello.rfind("gone", 0) == 0) GTEST_SKIP() << "the build folder is closed to others";
  ASSERT_OK(vhost.ask("open vhost " + (folder / "w")));
  ASSERT_OK(virtio.ask("open virtio " + (folder / "w")));
  vhost.say("echo");
  EXPECT_OK(virtio.ask("wait-link up"));
  EXPECT_EQ(virtio.ask("ping 100 60"), "ok 100 0");
}

TEST(DpdkProcess, FewDescriptorsAreAnError) {
  Folder folder;
  Driver driver([] {
    const rlimit few{24, 24};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  expect_error(driver.ask("open vhost " + (folder / "w")), "RLIMIT_NOFILE");
  EXPECT_OK(driver.ask("process"));
}

TEST(DpdkProcess, ASmallFileSizeLimitIsAnError) {
  Folder folder;
  Driver driver([] {
    const rlimit small{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &small);
  });
  expect_error(driver.ask("open vhost " + (folder / "w")), "RLIMIT_FSIZE");
  EXPECT_OK(driver.ask("process"));
}

TEST(DpdkProcess, RationedAddressSpaceIsNoObstacle) {
  Folder folder;
  Driver driver([] {
    const rlimit four_gib{rlim_t{4} << 30, rlim_t{4} << 30};
    setrlimit(RLIMIT_AS, &four_gib);
  });
  EXPECT_OK(driver.ask("open vhost " + (folder / "w")));
}

TEST(DpdkProcess, WaitingForAPeerCostsNextToNothing) {
  Folder folder;
  Driver driver;
  ASSERT_OK(driver.ask("open virtio " + (folder / "w")));
  const std::string answer = driver.ask("idle 1500");
  long cpu_us = -1;
  std::sscanf(answer.c_str(), "ok %ld", &cpu_us);
  constexpr long kMostCpuUs = 50'000;  // about 110 tries, 20 us each, on a busy machine
  EXPECT_GE(cpu_us, 0) << answer;
  EXPECT_LE(cpu_us, kMostCpuUs) << answer;
}

TEST(DpdkProcess, WrongTargetsAreExplained) {
  Folder folder;
  Driver driver;
  expect_error(driver.ask("check vhost /no/such/folder/w"), "/no/such/folder");
  expect_error(driver.ask("check virtio " + (folder / "a,b")), "cannot take a path");
  expect_error(driver.ask("check vhost " + (folder / std::string(120, 'x').c_str())), "at most 107");
  expect_error(driver.ask("check pci 1234"), "not a PCI address");
  expect_error(driver.ask("check pci 0000:7f:1f.7"), "pci:0000:7f:1f.7: no such device (see: lspci -D)");
  expect_error(driver.ask("check carrier pigeon"), "accepted are");
  std::filesystem::create_directory(folder / "w");
  expect_error(driver.ask("open vhost " + (folder / "w")), "not a socket");
}

// With -DBYPASS_DPDK_EXTRA_PMDS=… the plugin has every driver of the installed DPDK.
TEST(DpdkProcess, EveryInstalledDriverLinksAndLoads) {
  Driver driver({}, EVERY_CARD_PLUGIN);
  expect_error(driver.ask("check dpdk net_nosuch"), "net_bonding");
  ASSERT_OK(driver.ask("open dpdk net_null0"));
  EXPECT_OK(driver.ask("close"));
  EXPECT_EQ(driver.errors(), "");
}

TEST(DpdkProcess, DriversThatAreNotThereAreNamed) {
  Driver driver({}, CARDS_PLUGIN);
  expect_error(driver.ask("check dpdk net_nosuch"), "-DBYPASS_DPDK_EXTRA_PMDS=ARCHIVE");
  expect_error(driver.ask("check dpdk net_bonding0"), "net_memif");
  expect_error(driver.ask("check dpdk net_ixgbe0"), "by their PCI address, those of virtio ");
  expect_error(driver.ask("check dpdk 0000:7f:1f.7,iova=1"), "no such device (see: lspci -D)");
}

// Without huge pages, DPDK's memory keeps the size that it got with the first port.
TEST(DpdkProcess, TheLastPortHasItsMemoryToo) {
  Driver driver({}, CARDS_PLUGIN);
  EXPECT_OK(driver.ask("fill 3 50331648"));
}

TEST(DpdkProcess, OtherDriversOpen) {
  Driver driver({}, CARDS_PLUGIN);
  EXPECT_OK(driver.ask("open dpdk net_null0"));
  EXPECT_EQ(driver.ask("identity"), "ok 1500 with a MAC address");
  EXPECT_OK(driver.ask("close"));
  EXPECT_OK(driver.ask("open dpdk net_ring0"));
  EXPECT_OK(driver.ask("wait-link up"));
  EXPECT_EQ(driver.ask("ping 100 60"), "ok 100 0");  // a ring device with one end echoes by itself
}

}  // namespace
}  // namespace bypass::test
