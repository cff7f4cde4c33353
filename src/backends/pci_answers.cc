#include "backends/pci_answers.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "backends/card_drivers.h"

namespace bypass {
namespace {

constexpr std::uint32_t kNetworkClass = 0x02;
constexpr std::string_view kVfio = "vfio-pci";

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

// Drivers that keep a card for another user of it, such as a virtual machine, and make no interface.
bool is_stub(std::string_view driver) {
  return driver == "pci-stub" || driver == "pciback" || driver == "xen-pciback";
}

bool is_locked_down(const PciCard& card) {
  return card.lockdown == "integrity" || card.lockdown == "confidentiality";
}

std::string bind_command(const PciCard& card, std::string_view driver) {
  std::string text;
  if (!card.interfaces.empty()) text = "ip link set " + card.interfaces.front() + " down && ";
  text += "modprobe " + std::string(driver);
  return text + " && dpdk-devbind.py --bind=" + std::string(driver) + " " + card.address;
}

// Which driver to bind: vfio-pci if the machine has an IOMMU, else one of uio's drivers that DPDK's driver works with.
// Empty: there is none.
std::string_view wanted_driver(const PciCard& card, const CardDriver* driver) {
  const auto works_with = [&](std::string_view kernel) {
    return driver == nullptr || driver->kernel.empty() || driver->kernel.find(kernel) != std::string_view::npos;
  };
  if (!card.group.empty() && !card.is_without_iommu && works_with("vfio")) return kVfio;
  if (is_locked_down(card)) return "";
  for (const std::string_view uio : {"uio_pci_generic", "igb_uio"})
    if (works_with(uio)) return uio;
  return "";
}

constexpr std::string_view kNoIommu =
    "this machine has no IOMMU that is switched on (intel_iommu=on or amd_iommu=on on the kernel's command line; in a "
    "virtual machine its host's setting)";

std::string lockdown_text(const PciCard& card) {
  return "the kernel's lockdown (" + card.lockdown +
         ", of Secure Boot) lets no process reach a card without an IOMMU; accepted is vfio-pci with one, or Secure "
         "Boot switched off";
}

std::string how_to_bind(const PciCard& card, const CardDriver* driver) {
  const std::string_view wanted = wanted_driver(card, driver);
  if (wanted.empty() && is_locked_down(card)) return joined({"; ", kNoIommu, ", and ", lockdown_text(card)});
  if (wanted.empty()) return joined({"; ", kNoIommu, ", and DPDK's driver for the card works with vfio-pci alone"});
  std::string text;
  if (wanted != kVfio && card.group.empty()) text = joined({"; ", kNoIommu, ", so vfio-pci does not do"});
  if (wanted == "igb_uio") text += "; the module igb_uio is built from https://git.dpdk.org/dpdk-kmods";
  text += "; this binds it, as root: " + bind_command(card, wanted);
  if (!card.driver.empty() && card.driver != kVfio)
    text += joined({"; and this gives it back: dpdk-devbind.py --bind=", card.driver, " ", card.address});
  return text;
}

std::string interface_text(const PciCard& card) {
  if (is_stub(card.driver)) return "";
  if (card.interfaces.empty())
    return ", and no interface of it is in this network namespace (another one may have it: ip netns)";
  return ", as the interface " + card.interfaces.front();
}

std::string route_warning(const PciCard& card) {
  if (card.default_route.empty()) return "";
  return "; WARNING: " + card.default_route + " carries this machine's default route" +
         (card.above.empty() ? "" : " (through " + card.above + ")") + ", which would be cut off";
}

std::string class_problem(const PciCard& card, const std::string& root) {
  if (card.class_code >> 16 == kNetworkClass || driver_of_card(card) != nullptr) return "";
  char number[9];
  std::snprintf(number, sizeof number, "%04x", card.class_code >> 8);
  return "no network card, but " + pci_name(card, root) + ", of the class " + number +
         "; accepted is one of class 02 (see: lspci -D)";
}

std::string driver_problem(const PciCard& card, const CardDriver* driver, const std::string& root) {
  if (!knows_card_drivers() || (driver != nullptr && driver->is_linked)) return "";
  const std::string name = pci_name(card, root);
  if (driver != nullptr)
    return name + ": its driver " + std::string(driver->name) +
           " is not in this build; accepted is a build with -DBYPASS_DPDK_EXTRA_PMDS=" + std::string(driver->archive);
  std::string text = name + ": DPDK " + std::string(dpdk_version()) + ", which this build has, has no driver for it; ";
  if (card.interfaces.empty()) return text + "needed is a DPDK that has one";
  return text + "needed is a DPDK that has one, or af_packet:" + card.interfaces.front() +
         " over the kernel's driver " + card.driver;
}

// For mlx4 and mlx5, whose kernel driver stays bound.
std::string beside_problem(const PciCard& card, const std::string& root) {
  const bool is_mlx4 = driver_of_card(card)->archive == "net_mlx4";
  const std::string own = is_mlx4 ? "mlx4_core" : "mlx5_core";
  const std::string_view has = card.driver.empty() ? "no driver" : std::string_view(card.driver);
  if (card.driver != own)
    return joined({pci_name(card, root), " works beside its kernel driver ", own, ", and ", has,
                   " has it; this binds it, as root: dpdk-devbind.py --bind=", own, " ", card.address});
  if (!card.has_uverbs)
    return pci_name(card, root) + ": the RDMA half of its kernel driver is not there; as root: modprobe -a ib_uverbs " +
           (is_mlx4 ? "mlx4_ib" : "mlx5_ib");
  if (card.interfaces.empty())
    return "no interface of " + pci_name(card, root) +
           " is in this network namespace (another one may have it: ip netns); accepted is a process in that one";
  return "";
}

std::string neighbours_text(const PciCard& card, const std::string& root) {
  std::string text;
  for (const PciDevice& other : card.neighbours) {
    if (other.driver.empty() || other.driver == kVfio || is_stub(other.driver)) continue;
    text += joined({text.empty() ? "" : ", ", other.address, " (", pci_name(other, root), ", on ", other.driver, ")"});
  }
  return text;
}

std::string vfio_problem(const PciCard& card, const std::string& root) {
  if (card.group.empty()) return joined({"bound to vfio-pci, but ", kNoIommu, how_to_bind(card, nullptr)});
  const std::string others = neighbours_text(card, root);
  if (others.empty()) return "";
  return "the card shares its IOMMU group " + card.group + " with " + others +
         "; vfio gives a group to one process as a whole, so each of these has to be on vfio-pci, or on no driver "
         "(dpdk-devbind.py --unbind ADDRESS), or the card in another slot";
}

std::string outcome(const PciCard& card, const std::string& further, const std::string& root) {
  std::string problem = card_problem(card, root);
  if (problem.empty()) problem = further;
  if (!problem.empty()) return "no: " + problem;
  const CardDriver* driver = driver_of_card(card);
  if (driver != nullptr && works_beside_kernel(*driver)) return "yes, beside " + card.driver;
  return "yes, through " + card.driver + (card.driver == kVfio ? " (" + device_file(card) + ")" : "");
}

}  // namespace

std::string card_problem(const PciCard& card, const std::string& root) {
  if (!card.has_sysfs) return "/sys/bus/pci is not there, by which cards are found (a container without /sys?)";
  if (!card.is_there) return "no such device (see: lspci -D)";
  if (std::string problem = class_problem(card, root); !problem.empty()) return problem;
  const CardDriver* driver = driver_of_card(card);
  if (std::string problem = driver_problem(card, driver, root); !problem.empty()) return problem;
  if (driver != nullptr && works_beside_kernel(*driver)) return beside_problem(card, root);
  if (card.driver == kVfio) return vfio_problem(card, root);
  if (needs_physical_addresses(card)) return is_locked_down(card) ? lockdown_text(card) : "";
  if (card.driver.empty()) return "no driver has " + pci_name(card, root) + how_to_bind(card, driver);
  return "the kernel's driver " + card.driver + " has " + pci_name(card, root) + interface_text(card) +
         route_warning(card) + how_to_bind(card, driver);
}

std::string lock_problem(const PciCard& card, std::uint64_t bytes, const LockLimit& limit) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const bool pins = (card.driver == kVfio && !card.is_without_iommu) || card.driver.starts_with("mlx");
  if (!pins || limit.is_exempt || limit.bytes >= bytes) return "";
  return "this process may lock " + std::to_string(limit.bytes / kMiB) +
         " MiB of memory (RLIMIT_MEMLOCK, ulimit -l), and " + "the card's ports need " +
         std::to_string((bytes + kMiB - 1) / kMiB) +
         "; accepted is a higher limit (LimitMEMLOCK=infinity in a unit of systemd's, memlock in limits.conf), or a "
         "smaller BYPASS_PORT_MEMORY";
}

std::string physical_problem(const PciCard& card, std::uint64_t bytes, bool huge_pages, bool sees_addresses) {
  if (huge_pages && sees_addresses) return "";
  const std::string count = std::to_string(huge_pages_for(bytes));
  std::string text = "a card on " + card.driver + " without an IOMMU needs ";
  if (!huge_pages)
    text += count + " free huge pages of 2 MiB (BYPASS_HUGEPAGES=auto with sysctl vm.nr_hugepages=" + count + ")";
  if (!huge_pages && !sees_addresses) text += " and ";
  if (!sees_addresses) text += "the right to see physical addresses (root, or CAP_SYS_ADMIN)";
  return text + "; accepted is vfio-pci behind an IOMMU, too, which needs neither";
}

PagePlan page_plan(const PciCard& card, std::uint64_t bytes, bool huge_allowed, bool sees_addresses,
                   const std::string& root) {
  const std::uint64_t wanted = huge_pages_for(bytes), free = free_huge_pages(root);
  const bool huge = huge_allowed && free >= wanted;
  const std::string count = std::to_string(wanted) + " huge pages of 2 MiB";
  const std::string state = huge_allowed ? std::to_string(free) + " are free" : "BYPASS_HUGEPAGES is off";
  PagePlan plan{huge ? count + ", " + state : "small pages (" + count + " are wanted; " + state + ")", ""};
  if (needs_physical_addresses(card)) plan.problem = physical_problem(card, bytes, huge, sees_addresses);
  return plan;
}

CardPlan card_plan(const PciCard& card, const std::string& further, const std::string& root) {
  CardPlan plan;
  if (card.is_there) {
    const CardDriver* driver = driver_of_card(card);
    plan.emplace_back("card", pci_name(card, root));
    plan.emplace_back("kernel's driver", card.driver.empty() ? "none" : card.driver);
    if (!card.interfaces.empty())
      plan.emplace_back("interface",
                        card.interfaces.front() + (card.default_route.empty() ? "" : ", carries the default route"));
    plan.emplace_back("IOMMU group", card.group.empty()      ? "none"
                                     : card.is_without_iommu ? card.group + ", without an IOMMU"
                                                             : card.group);
    if (driver != nullptr)
      plan.emplace_back("DPDK's driver", std::string(driver->name) + (driver->is_linked ? "" : ", not in this build"));
  }
  plan.emplace_back("opens", outcome(card, further, root));
  return plan;
}

}  // namespace bypass
