// What is said about a card before DPDK is asked: each state in which a card cannot be had, as /sys shows it.
#include "backends/pci_answers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "backends/card_drivers.h"
#include "config/pci_tree.h"

namespace bypass {
namespace {

using test::PciTree;

constexpr const char* kCard = "0000:3b:00.0";
constexpr const char* kEthernet = "020000";
constexpr const char* kName = "Intel Corporation 82574L Gigabit Network Connection (8086:10d3)";

std::string problem_in(const PciTree& tree, const char* address = kCard) {
  return card_problem(read_pci_card(address, tree.root()), tree.root());
}

/// An e1000e in an IOMMU group of its own, on `driver`.
void add_card(const PciTree& tree, const std::string& driver) {
  tree.add(kCard, "8086:10d3", kEthernet, driver);
  tree.set_group(kCard, "14");
}

std::string bind_text(const std::string& before = "") {
  return "; this binds it, as root: " + before + "modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci 0000:3b:00.0";
}
std::string back_text(const std::string& driver) {
  return "; and this gives it back: dpdk-devbind.py --bind=" + driver + " 0000:3b:00.0";
}

TEST(PciAddress, IsMadeFull) {
  EXPECT_EQ(full_pci_address("3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(full_pci_address("0001:3b:1f.7"), "0001:3b:1f.7");
  for (const char* wrong : {"", "eth0", "3b:00", "3b:00.8", "0000:3b:00.0 ", "0000:3g:00.0", "1234"})
    EXPECT_EQ(full_pci_address(wrong), std::nullopt) << wrong;
}

TEST(PciAnswers, ACardOnVfioCanBeHad) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  EXPECT_EQ(problem_in(tree), "");
}

TEST(PciAnswers, NoSuchDevice) {
  const PciTree tree;
  EXPECT_EQ(problem_in(tree), "no such device (see: lspci -D)");
}

TEST(PciAnswers, NoSysfs) {
  const PciTree tree;
  EXPECT_EQ(card_problem(read_pci_card(kCard, tree.root() + "/empty")),
            "/sys/bus/pci is not there, by which cards are found (a container without /sys?)");
}

TEST(PciAnswers, NoNetworkCard) {
  const PciTree tree;
  tree.add(kCard, "144d:a808", "010802", "nvme");
  EXPECT_EQ(problem_in(tree),
            "no network card, but Samsung NVMe SSD (144d:a808), of the class 0108; accepted is one of class 02 (see: "
            "lspci -D)");
}

TEST(PciAnswers, TheKernelsDriverHasIt) {
  const PciTree tree;
  add_card(tree, "e1000e");
  tree.set_interface(kCard, "eth1");
  tree.set_default_route("eth0");
  EXPECT_EQ(problem_in(tree), "the kernel's driver e1000e has " + std::string(kName) + ", as the interface eth1" +
                                  bind_text("ip link set eth1 down && ") + back_text("e1000e"));
}

// The interface of a virtio card lies below another device, which lies below the card.
TEST(PciAnswers, TheKernelsVirtioDriverHasIt) {
  const PciTree tree;
  tree.add(kCard, "1af4:1041", kEthernet, "virtio-pci");
  tree.folder("/sys/bus/pci/devices/0000:3b:00.0/virtio2/net/eth0");
  tree.set_default_route("eth0");
  const std::string problem = problem_in(tree);
  EXPECT_NE(problem.find("virtio-pci has the card 1af4:1041, as the interface eth0"), std::string::npos) << problem;
  EXPECT_NE(problem.find("WARNING: eth0 carries"), std::string::npos) << problem;
}

TEST(PciAnswers, TheDefaultRouteWouldBeCutOff) {
  const std::string warning = "; WARNING: eth1 carries this machine's default route";
  {
    const PciTree tree;
    add_card(tree, "e1000e");
    tree.set_interface(kCard, "eth1");
    tree.set_default_route("eth1");
    EXPECT_NE(problem_in(tree).find(warning + ", which would be cut off" + "; this binds it"), std::string::npos)
        << problem_in(tree);
  }
  {
    const PciTree tree;
    add_card(tree, "e1000e");
    tree.set_interface(kCard, "eth1");
    tree.write("/proc/net/ipv6_route",
               std::string(32, '0') + " 00 " + std::string(32, '0') + " 00 fe80 1 2 3 4     eth1\n");
    EXPECT_NE(problem_in(tree).find(warning + ", which would be cut off" + "; this binds it"), std::string::npos)
        << problem_in(tree);
  }
  const PciTree tree;  // a VLAN of the bridge that the interface is in
  add_card(tree, "e1000e");
  tree.set_interface(kCard, "eth1");
  tree.link("../br0", "/sys/class/net/eth1/upper_br0");
  tree.link("../br0.5", "/sys/class/net/br0/upper_br0.5");
  tree.set_default_route("br0.5");
  EXPECT_NE(problem_in(tree).find(warning + " (through br0.5), which would be cut off" + "; this binds it"),
            std::string::npos)
      << problem_in(tree);
}

TEST(PciAnswers, ItsInterfaceIsInAnotherNetworkNamespace) {
  const PciTree tree;
  add_card(tree, "e1000e");
  EXPECT_EQ(problem_in(tree), "the kernel's driver e1000e has " + std::string(kName) +
                                  ", and no interface of it is in this network namespace (another one may have it: ip "
                                  "netns)" +
                                  bind_text() + back_text("e1000e"));
}

TEST(PciAnswers, NoDriverHasIt) {
  const PciTree tree;
  add_card(tree, "");
  EXPECT_EQ(problem_in(tree), "no driver has " + std::string(kName) + bind_text());
}

TEST(PciAnswers, AStubHasIt) {
  const PciTree tree;
  add_card(tree, "pci-stub");
  EXPECT_EQ(problem_in(tree),
            "the kernel's driver pci-stub has " + std::string(kName) + bind_text() + back_text("pci-stub"));
}

constexpr const char* kNoIommu =
    "this machine has no IOMMU that is switched on (intel_iommu=on or amd_iommu=on on the kernel's command line; in a "
    "virtual machine its host's setting)";

TEST(PciAnswers, WithoutAnIommuItIsUio) {
  const PciTree tree;
  tree.add(kCard, "8086:10d3", kEthernet, "");
  EXPECT_EQ(problem_in(tree), "no driver has " + std::string(kName) + "; " + kNoIommu +
                                  ", so vfio-pci does not do; this binds it, as root: modprobe uio_pci_generic && "
                                  "dpdk-devbind.py --bind=uio_pci_generic 0000:3b:00.0");
  const PciTree bound;
  bound.add(kCard, "8086:10d3", kEthernet, "uio_pci_generic");
  EXPECT_EQ(problem_in(bound), "");
}

// A card without INTx, such as a virtual function, works with uio's other module.
TEST(PciAnswers, WithoutAnIommuItIsTheUioThatTheDriverWorksWith) {
  if (!knows_card_drivers()) GTEST_SKIP() << "a build without DPDK";
  const PciTree tree;
  tree.add(kCard, "1ae0:0042", kEthernet, "");  // Google's gVNIC
  EXPECT_EQ(problem_in(tree), std::string("no driver has the card 1ae0:0042; ") + kNoIommu +
                                  ", so vfio-pci does not do; the module igb_uio is built from "
                                  "https://git.dpdk.org/dpdk-kmods; this binds it, as root: modprobe igb_uio && "
                                  "dpdk-devbind.py --bind=igb_uio 0000:3b:00.0");
}

constexpr const char* kLockdown =
    "the kernel's lockdown (integrity, of Secure Boot) lets no process reach a card without an IOMMU; accepted is "
    "vfio-pci with one, or Secure Boot switched off";

TEST(PciAnswers, SecureBootForbidsUio) {
  const PciTree tree;
  tree.add(kCard, "8086:10d3", kEthernet, "uio_pci_generic");
  tree.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
  EXPECT_EQ(problem_in(tree), kLockdown);
  const PciTree unbound;
  unbound.add(kCard, "8086:10d3", kEthernet, "");
  unbound.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
  EXPECT_EQ(problem_in(unbound), "no driver has " + std::string(kName) + "; " + kNoIommu + ", and " + kLockdown);
}

TEST(PciAnswers, SecureBootAllowsVfio) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  tree.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
  EXPECT_EQ(problem_in(tree), "");
}

TEST(PciAnswers, TheGroupIsShared) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  tree.add("0000:3a:00.0", "8086:2030", "060400", "pcieport");
  tree.add("0000:3b:00.1", "8086:10d3", kEthernet, "e1000e");
  tree.add("0000:3b:00.2", "144d:a808", "010802", "nvme");
  tree.add("0000:3b:00.3", "8086:10d3", kEthernet, "vfio-pci");
  tree.add("0000:3b:00.4", "8086:10d3", kEthernet, "");
  for (const char* address : {"0000:3a:00.0", "0000:3b:00.1", "0000:3b:00.2", "0000:3b:00.3", "0000:3b:00.4"})
    tree.set_group(address, "14");
  EXPECT_EQ(problem_in(tree),
            "the card shares its IOMMU group 14 with 0000:3b:00.1 (" + std::string(kName) +
                ", on e1000e), 0000:3b:00.2 (Samsung NVMe SSD (144d:a808), on nvme); vfio gives a group to one process "
                "as a whole, so each of these has to be on vfio-pci, or on no driver (dpdk-devbind.py --unbind "
                "ADDRESS), or the card in another slot");
}

TEST(PciAnswers, NoDriverOfDpdkKnowsIt) {
  if (!knows_card_drivers()) GTEST_SKIP() << "a build without DPDK";
  const PciTree tree;
  tree.add(kCard, "1414:00ba", kEthernet, "mana");  // of Azure: net_mana is not in Debian's DPDK 22.11
  tree.set_interface(kCard, "eth1");
  EXPECT_EQ(problem_in(tree), "the card 1414:00ba: DPDK " + std::string(dpdk_version()) +
                                  ", which this build has, has no driver for it; needed is a DPDK that has one, or "
                                  "af_packet:eth1 over the kernel's driver mana");
}

TEST(PciAnswers, ItsDriverIsNotInThisBuild) {
  if (!knows_card_drivers()) GTEST_SKIP() << "a build without DPDK";
  const PciTree tree;
  tree.add(kCard, "14e4:168e", kEthernet, "bnx2x");
  const CardDriver* driver = driver_of_card(read_pci_card(kCard, tree.root()));
  if (driver == nullptr || driver->is_linked) GTEST_SKIP() << "this build has it, or no DPDK has";
  EXPECT_EQ(problem_in(tree),
            "the card 14e4:168e: its driver net_bnx2x is not in this build; accepted is a build with "
            "-DBYPASS_DPDK_EXTRA_PMDS=net_bnx2x");
}

TEST(PciAnswers, EachCardOfTheCloudsHasItsDriver) {
  if (!knows_card_drivers()) GTEST_SKIP() << "a build without DPDK";
  const std::pair<const char*, const char*> cards[] = {
      {"1d0f:ec20", "net_ena"},       {"1ae0:0042", "net_gve"},     {"15b3:1016", "mlx5_eth"},
      {"15b3:1004", "net_mlx4"},      {"15ad:07b0", "net_vmxnet3"}, {"1af4:1000", "net_virtio"},
      {"1af4:1041", "net_virtio"},    {"8086:1572", "net_i40e"},    {"8086:1592", "net_ice"},
      {"8086:1889", "net_iavf"},      {"8086:15f2", "net_igc"},     {"8086:10fb", "net_ixgbe"},
      {"8086:1521", "net_e1000_igb"}, {"14e4:16d7", "net_bnxt"},    {"8086:10d3", "net_e1000_em"}};
  for (const auto& [numbers, name] : cards) {
    const PciTree tree;
    tree.add(kCard, numbers, kEthernet, "");
    const CardDriver* driver = driver_of_card(read_pci_card(kCard, tree.root()));
    ASSERT_NE(driver, nullptr) << numbers;
    EXPECT_EQ(driver->name, name) << numbers;
    EXPECT_TRUE(driver->is_linked) << numbers;
  }
}

// --- Cards whose kernel driver stays

TEST(PciAnswers, AnMlx5CardStaysWithItsKernelDriver) {
  if (!knows_card_drivers()) GTEST_SKIP() << "a build without DPDK";
  const auto with_driver = [](const PciTree& tree, const char* driver) {
    tree.add(kCard, "15b3:1016", kEthernet, driver);
    return problem_in(tree);
  };
  EXPECT_EQ(with_driver(PciTree(), "vfio-pci"),
            "the card 15b3:1016 works beside its kernel driver mlx5_core, and vfio-pci has it; this binds it, as root: "
            "dpdk-devbind.py --bind=mlx5_core 0000:3b:00.0");
  EXPECT_EQ(with_driver(PciTree(), "mlx5_core"),
            "the card 15b3:1016: the RDMA half of its kernel driver is not there; as root: modprobe -a ib_uverbs "
            "mlx5_ib");
  const PciTree tree;
  tree.folder("/sys/bus/pci/devices/0000:3b:00.0/infiniband_verbs/uverbs0");
  EXPECT_EQ(with_driver(tree, "mlx5_core"),
            "no interface of the card 15b3:1016 is in this network namespace (another one may have it: ip netns); "
            "accepted is a process in that one");
  tree.set_interface(kCard, "eth1");
  EXPECT_EQ(problem_in(tree), "");
}

/// A child that has `path` open until the end of the block.
class Holder {
 public:
  explicit Holder(const std::string& path) {
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      const char byte = 0;
      if (open(path.c_str(), O_RDWR | O_CLOEXEC) >= 0 && write(ready[1], &byte, 1) == 1) pause();
      _exit(1);
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] std::string name() const { return "the process " + std::to_string(pid_) + " (config_test)"; }

 private:
  pid_t pid_ = -1;
};

// --- What the process is allowed

// socket() and bind() need cancellation off. Neither is a cancellation point (pthreads(7)).
TEST(PciAnswers, AThreadThatIsToEndGetsItsAnswer) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  tree.write("/dev/vfio/14", "");
  const Holder holder(tree.root() + "/dev/vfio/14");
  set_open_file([](const char* path, int flags) {
    close(open(path, flags));
    errno = EBUSY;
    return -1;
  });
  struct Asked {
    const PciTree& tree;
    std::string holder;
  } asked{tree, {}};
  pthread_t thread;
  const auto ask = [](void* argument) -> void* {
    auto* a = static_cast<Asked*>(argument);
    pthread_cancel(pthread_self());
    a->holder = card_holder(read_pci_card(kCard, a->tree.root()), a->tree.root());
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, ask, &asked), 0);
  void* result = PTHREAD_CANCELED;
  pthread_join(thread, &result);
  set_open_file(nullptr);
  EXPECT_EQ(result, nullptr);
  EXPECT_EQ(asked.holder, holder.name());
}

TEST(PciAnswers, APortThatNamesNoMemoryHasTheDefault) {
  EXPECT_EQ(dpdk_bytes(0, 2), std::uint64_t{48 + 2 * 64} << 20);
  EXPECT_EQ(dpdk_bytes(8 << 20, 2), std::uint64_t{48 + 2 * 8} << 20);
}

TEST(PciAnswers, TooLittleMayBeLocked) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const PciTree tree;
  add_card(tree, "vfio-pci");
  const PciCard card = read_pci_card(kCard, tree.root());
  EXPECT_EQ(
      lock_problem(card, 112 * kMiB, {8 * kMiB, false}),
      "this process may lock 8 MiB of memory (RLIMIT_MEMLOCK, ulimit -l), and the card's ports need 112; accepted "
      "is a higher limit (LimitMEMLOCK=infinity in a unit of systemd's, memlock in limits.conf), or a smaller "
      "BYPASS_PORT_MEMORY");
  EXPECT_EQ(lock_problem(card, 112 * kMiB, {8 * kMiB, true}), "");
  EXPECT_EQ(lock_problem(card, 112 * kMiB, {112 * kMiB, false}), "");
  const PciTree uio;
  uio.add(kCard, "8086:10d3", kEthernet, "uio_pci_generic");
  EXPECT_EQ(lock_problem(read_pci_card(kCard, uio.root()), 112 * kMiB, {0, false}), "") << "nothing is pinned there";
  tree.write("/sys/kernel/iommu_groups/14/name", "vfio-noiommu\n");
  EXPECT_EQ(lock_problem(read_pci_card(kCard, tree.root()), 112 * kMiB, {0, false}), "") << "nor there";
}

template <int Error>
int refuse(const char*, int) {
  errno = Error;
  return -1;
}

/// access_problem() of a card on vfio-pci. `error`: the errno of opening its file.
std::string access_text(OpenFile open_file, bool& busy) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  set_open_file(open_file);
  std::string text = access_problem(read_pci_card(kCard, tree.root()), busy, tree.root());
  set_open_file(nullptr);
  return text;
}

TEST(PciAccess, OfACardThatNobodyHasNothingIsSaid) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  tree.write("/dev/vfio/14", "");
  bool busy = false;
  EXPECT_EQ(access_problem(read_pci_card(kCard, tree.root()), busy, tree.root()), "");
  EXPECT_FALSE(busy);
}

// A server that has called chroot(2) goes on with its card.
TEST(PciCards, AreNotSeenWithoutSys) {
  const PciTree tree;
  EXPECT_FALSE(sees_cards(tree.root() + "/nothing"));
  add_card(tree, "vfio-pci");
  EXPECT_TRUE(sees_cards(tree.root()));
}

TEST(PciAccess, TheModuleOfTheIommuIsMissing) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  tree.write("/dev/vfio/14", "");
  tree.folder("/sys/module/vfio");
  bool busy = false;
  EXPECT_EQ(
      access_problem(read_pci_card(kCard, tree.root()), busy, tree.root()),
      "the kernel's module vfio_iommu_type1 is not loaded, by which vfio-pci reaches the IOMMU; this loads it, as "
      "root: modprobe vfio_iommu_type1");
  tree.folder("/sys/module/vfio_iommu_type1");
  EXPECT_EQ(access_problem(read_pci_card(kCard, tree.root()), busy, tree.root()), "");
}

// iommufd serves DPDK only where the kernel was made with CONFIG_IOMMUFD_VFIO_CONTAINER.
TEST(PciAccess, WhetherIommufdTakesTheModulesPlaceIsAskedOfTheKernel) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  tree.write("/dev/vfio/14", "");
  tree.folder("/sys/module/vfio");
  tree.folder("/sys/module/iommufd");
  const PciCard card = read_pci_card(kCard, tree.root());
  bool busy = false;
  EXPECT_EQ(access_problem(card, busy, tree.root()), "") << "it cannot be asked here";
  tree.write("/dev/vfio/vfio", "");
  EXPECT_NE(access_problem(card, busy, tree.root()).find("modprobe vfio_iommu_type1"), std::string::npos);
  set_ask_container([](int) { return 1; });
  EXPECT_EQ(access_problem(card, busy, tree.root()), "");
  set_ask_container([](int) { return 0; });
  EXPECT_NE(access_problem(card, busy, tree.root()).find("modprobe vfio_iommu_type1"), std::string::npos);
  set_ask_container(nullptr);
}

TEST(PciAccess, AnotherProcessHasIt) {
  bool busy = false;
  EXPECT_EQ(access_text(refuse<EBUSY>, busy),
            "another process has the card (/dev/vfio/14); accepted is another card, or that process ended");
  EXPECT_TRUE(busy);
}

TEST(PciAccess, TheUserMayNot) {
  bool busy = false;
  EXPECT_EQ(access_text(refuse<EACCES>, busy),
            "/dev/vfio/14: Permission denied; as root: chown USER /dev/vfio/14, until the next boot");
  EXPECT_FALSE(busy);
}

TEST(PciAccess, AContainerHasNoFileOfIt) {
  bool busy = false;
  EXPECT_EQ(access_text(nullptr, busy),
            "/dev/vfio/14 is not there; a container needs it and /dev/vfio/vfio (docker run --device /dev/vfio/14 "
            "--device /dev/vfio/vfio)");
}

TEST(PciAccess, TheHolderIsNamed) {
  const PciTree tree;
  add_card(tree, "vfio-pci");
  tree.write("/dev/vfio/14", "");
  const PciCard card = read_pci_card(kCard, tree.root());
  set_open_file(refuse<EBUSY>);
  {
    const Holder holder(tree.root() + "/dev/vfio/14");
    EXPECT_EQ(card_holder(card, tree.root()), holder.name());
  }
  EXPECT_EQ(card_holder(card, tree.root()), "another process") << "one that this user may not look into";
  const int own = open((tree.root() + "/dev/vfio/14").c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(card_holder(card, tree.root()), "") << "this process itself";
  close(own);
  set_open_file(nullptr);
  EXPECT_EQ(card_holder(card, tree.root()), "");
}

// The kernel gives a card on uio to any number of processes at once. All of them would program the card.
TEST(PciAccess, OfACardOnUioTheHolderIsLookedFor) {
  const PciTree tree;
  tree.add(kCard, "8086:10d3", kEthernet, "uio_pci_generic");
  tree.folder("/sys/bus/pci/devices/0000:3b:00.0/uio/uio3");
  tree.write("/dev/uio3", "");
  const PciCard card = read_pci_card(kCard, tree.root());
  bool busy = true;
  EXPECT_EQ(access_problem(card, busy, tree.root()), "");
  EXPECT_FALSE(busy);
  const Holder holder(tree.root() + "/dev/uio3");
  EXPECT_EQ(access_problem(card, busy, tree.root()),
            holder.name() + " has the card (/dev/uio3); accepted is another card, or that process ended");
  EXPECT_TRUE(busy);
}

// --- The plan

TEST(PciPlan, SaysWhichPagesTheMemoryLiesIn) {
  constexpr std::uint64_t kBytes = 112 << 20;
  const PciTree tree;
  tree.write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "64\n");
  tree.write("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "8\n");
  add_card(tree, "vfio-pci");
  const PciCard card = read_pci_card(kCard, tree.root());
  EXPECT_EQ(page_plan(card, kBytes, true, false, tree.root()).text, "56 huge pages of 2 MiB, 56 are free");
  EXPECT_EQ(page_plan(card, kBytes + 1, true, false, tree.root()).text,
            "small pages (57 huge pages of 2 MiB are wanted; 56 are free)");
  EXPECT_EQ(page_plan(card, kBytes + 1, true, false, tree.root()).problem, "") << "an IOMMU translates";
  EXPECT_EQ(page_plan(card, kBytes, false, false, tree.root()).text,
            "small pages (56 huge pages of 2 MiB are wanted; BYPASS_HUGEPAGES is off)");
}

TEST(PciPlan, WithoutAnIommuSaysWhatPhysicalAddressesNeed) {
  constexpr std::uint64_t kBytes = 112 << 20;
  const PciTree few, enough;
  enough.write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "56\n");
  few.add(kCard, "8086:10d3", kEthernet, "uio_pci_generic");
  const PciCard card = read_pci_card(kCard, few.root());
  const auto problem = [&](bool sees, const PciTree& tree) {
    return page_plan(card, kBytes, true, sees, tree.root()).problem;
  };
  const std::string begin = "a card on uio_pci_generic without an IOMMU needs ";
  const std::string pages = "56 free huge pages of 2 MiB (BYPASS_HUGEPAGES=auto with sysctl vm.nr_hugepages=56)";
  const std::string right = "the right to see physical addresses (root, or CAP_SYS_ADMIN)";
  const std::string end = "; accepted is vfio-pci behind an IOMMU, too, which needs neither";
  EXPECT_EQ(problem(true, enough), "");
  EXPECT_EQ(problem(true, few), begin + pages + end);
  EXPECT_EQ(problem(false, enough), begin + right + end);
  EXPECT_EQ(problem(false, few), begin + pages + " and " + right + end);
}

TEST(PciPlan, SaysWhatWillBe) {
  if (!knows_card_drivers()) GTEST_SKIP() << "a build without DPDK";
  const PciTree tree;
  add_card(tree, "vfio-pci");
  EXPECT_EQ(card_plan(read_pci_card(kCard, tree.root()), "", tree.root()),
            (CardPlan{{"card", kName},
                      {"kernel's driver", "vfio-pci"},
                      {"IOMMU group", "14"},
                      {"DPDK's driver", "net_e1000_em"},
                      {"opens", "yes, through vfio-pci (/dev/vfio/14)"}}));
  EXPECT_EQ(card_plan(read_pci_card(kCard, tree.root()), "busy", tree.root()).back().second, "no: busy");
  const PciTree kernels;
  add_card(kernels, "e1000e");
  kernels.set_interface(kCard, "eth1");
  kernels.set_default_route("eth1");
  const CardPlan plan = card_plan(read_pci_card(kCard, kernels.root()), "", kernels.root());
  ASSERT_EQ(plan.size(), 6U);
  EXPECT_EQ(plan[2], CardPlan::value_type("interface", "eth1, carries the default route"));
  EXPECT_TRUE(plan[5].second.starts_with("no: the kernel's driver e1000e has")) << plan[5].second;
  EXPECT_EQ(card_plan(read_pci_card("0000:3c:00.0", tree.root())),
            (CardPlan{{"opens", "no: no such device (see: lspci -D)"}}));
}

}  // namespace
}  // namespace bypass
