#include "backends/dpdk/port_plan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "backends/dpdk/drivers.h"
#include "backends/dpdk/peer.h"
#include "backends/dpdk/trust.h"
#include "backends/pci_answers.h"
#include "backends/pci_card.h"
#include "backends/wire_target.h"

namespace bypass::dpdk {
namespace {

// A 64 KB frame crosses shared memory in 8 KiB buffers 1.3 to 1.8 times as fast as in 2 KiB ones: every buffer costs
// a descriptor's cache lines. Larger ones gain little more. A small frame touches only a buffer's first page.
constexpr std::uint32_t kSharedMemoryRoom = 8192;

// Device names are unique in a process.
std::string next_name(std::string_view driver) {
  static std::atomic<unsigned> counter{0};
  return std::string(driver) + std::to_string(counter.fetch_add(1));
}

std::string text_of(MacAddress mac) {
  char text[18];
  const auto& b = mac.bytes;
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]);
  return text;
}

// Resolves the folder and keeps the name: the socket itself may not exist yet, and the program may call chdir().
bool absolute_path(const std::string& path, std::string& out, std::string& problem) {
  const std::string folder = folder_of(path);
  char resolved[PATH_MAX];
  if (::realpath(folder.c_str(), resolved) == nullptr) {
    problem = "the folder " + folder + " of socket " + path + ": " + std::strerror(errno);
    return false;
  }
  const std::size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  out = std::string(resolved) + (std::strcmp(resolved, "/") == 0 ? "" : "/") + name;
  return true;
}

bool check_socket_path(const PortSpec& spec, std::string& path, std::string& problem) {
  const std::string what = spec.kind + ":" + spec.target;
  if (spec.target.empty() || spec.target.back() == '/') {
    problem = what + ": a socket path is needed, as in " + spec.kind + ":/run/user/1000/wire.sock";
    return false;
  }
  const WireTarget target = wire_target(spec.target);
  if (target.path.find_first_of(",=[]()\"'") != std::string::npos) {
    problem = what + ": DPDK cannot take a path with any of , = [ ] ( ) or quotes";
    return false;
  }
  if (!absolute_path(std::string(target.path), path, problem)) return false;
  if (const std::string wrong = wire_problem(target); !wrong.empty()) {
    problem = what + ": " + wrong;
    return false;
  }
  if (const auto peer = target.has_peer ? user_number(target.peer) : std::nullopt; peer && !trust_user(path, *peer)) {
    problem = what + ": too many ports of this process have had a peer=";
    return false;
  }
  constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kLongest) return true;
  problem = what + ": the socket path has " + std::to_string(path.size()) + " bytes; at most " +
            std::to_string(kLongest) + " are possible";
  return false;
}

bool plan_vhost(const PortSpec& spec, PortPlan& plan, std::string& problem) {
  if (!check_socket_path(spec, plan.path, problem)) return false;
  if (::faccessat(AT_FDCWD, folder_of(plan.path).c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    problem = spec.kind + ":" + spec.target + ": no socket can be made in " + folder_of(plan.path) + ": " +
              std::strerror(errno);
    return false;
  }
  plan.role = Role::kVhost;
  plan.device.name = next_name("net_vhost");
  plan.device.arguments = "iface=" + plan.path + ",queues=1,tso=1";
  plan.expected.gather = true;
  if (plan.mac.is_zero()) plan.mac = derive_mac(plan.path, 's');
  return true;
}

bool plan_virtio(const PortSpec& spec, PortPlan& plan, std::string& problem) {
  if (!check_socket_path(spec, plan.path, problem)) return false;
  plan.role = Role::kVirtio;
  plan.device.virtio_user = true;
  plan.device.name = next_name("net_virtio_user");
  if (plan.mac.is_zero()) plan.mac = derive_mac(plan.path, 'c');
  plan.device.arguments = "path=" + plan.path + ",queues=1,queue_size=" + std::to_string(plan.device.descriptors) +
                          ",mac=" + text_of(plan.mac);
  return true;
}

void share_memory_with_peer(PortPlan& plan) {
  plan.device.shared_memory = true;
  plan.pool.data_room = kSharedMemoryRoom;
  plan.expected.rx_checksum = plan.expected.tx_l4_checksum = plan.expected.tso = plan.expected.lro = true;
  plan.expected.tso_max_bytes = kLargestTsoPayload;
}

/// The addresses of "pci:ADDRESS" and "dpdk:ADDRESS,ARGUMENTS" among the ports of a process.
std::vector<std::string> cards_among(const std::vector<std::string>& ports) {
  std::vector<std::string> cards;
  for (const std::string& port : ports) {
    const std::size_t colon = port.find(':');
    const std::string kind = port.substr(0, colon);
    if (colon == std::string::npos || (kind != "pci" && kind != "dpdk")) continue;
    const std::string address = port.substr(colon + 1, port.find(',') - colon - 1);
    if (auto full = full_pci_address(address)) cards.push_back(*std::move(full));
  }
  return cards;
}

bool plan_pci(const std::string& target, const std::string& arguments, PortPlan& plan, std::string& problem) {
  const auto address = full_pci_address(target);
  if (!address) {
    problem = "pci:" + target + ": not a PCI address (as in pci:0000:3b:00.0)";
    return false;
  }
  const PciCard card = read_pci_card(*address);
  if (problem = card_problem(card); !problem.empty()) {
    problem = "pci:" + target + ": " + problem;
    return false;
  }
  plan.device.bus = "pci";
  plan.device.name = *address;
  plan.device.arguments = arguments;
  plan.prepare = true;
  return true;
}

bool plan_devargs(const PortSpec& spec, PortPlan& plan, std::string& problem) {
  const std::size_t comma = spec.target.find(',');
  const std::string name = spec.target.substr(0, comma);
  const std::string arguments = comma == std::string::npos ? "" : spec.target.substr(comma + 1);
  if (full_pci_address(name)) return plan_pci(name, arguments, plan, problem);
  const std::string driver = name.substr(0, name.find_last_not_of("0123456789") + 1);
  const auto known = virtual_drivers();
  if (std::find(known.begin(), known.end(), driver) == known.end()) {
    problem = "dpdk:" + spec.target + ": this build has no driver " + driver + "; it has";
    for (const std::string_view each : known) problem += " " + std::string(each);
    problem += ", and for cards, by their PCI address, those of " + std::string(card_drivers()) +
               ". Build with -DBYPASS_DPDK_EXTRA_PMDS=ARCHIVE to add one, as in net_bond for librte_net_bond.a";
    return false;
  }
  plan.device.name = name;
  plan.device.arguments = arguments;
  plan.prepare = true;
  plan.foreign_threads = true;
  if (driver == "net_memif")
    plan.warning = "dpdk:" + name + ": DPDK's memif driver can crash this program when its peer ends; prefer virtio:";
  return true;
}

bool plan_kind(const PortSpec& spec, PortPlan& plan, std::string& problem) {
  if (spec.kind == "vhost" || spec.kind == "virtio") {
    share_memory_with_peer(plan);
    return spec.kind == "vhost" ? plan_vhost(spec, plan, problem) : plan_virtio(spec, plan, problem);
  }
  if (spec.kind == "pci") return plan_pci(spec.target, "", plan, problem);
  if (spec.kind == "dpdk") return plan_devargs(spec, plan, problem);
  problem = spec.kind + ":" + spec.target + ": not a wire of DPDK's; accepted are vhost, virtio, pci and dpdk";
  return false;
}

}  // namespace

MacAddress derive_mac(const std::string& target, char role) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : target + role) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  MacAddress mac;
  for (std::size_t i = 0; i < mac.bytes.size(); i++) mac.bytes[i] = static_cast<std::uint8_t>(hash >> (8 * i));
  mac.bytes[0] = static_cast<std::uint8_t>((mac.bytes[0] & 0xfc) | 0x02);  // locally administered, unicast
  return mac;
}

bool make_plan(const PortSpec& spec, PortPlan& plan, std::string& problem) {
  plan = PortPlan{};
  plan.mac = spec.mac;
  if (spec.mtu != 0 && (spec.mtu < kLeastMtu || spec.mtu > kMostMtu)) {
    problem = spec.kind + ":" + spec.target + ": an MTU of " + std::to_string(spec.mtu) +
              " is not possible; accepted are " + std::to_string(kLeastMtu) + " to " + std::to_string(kMostMtu);
    return false;
  }
  plan.device.mtu = spec.mtu;
  plan.hugepages = spec.hugepages;
  plan.pool.budget_bytes = spec.buffer_memory != 0 ? spec.buffer_memory : kDefaultPortMemory;
  plan.all_buffer_bytes = std::size_t{plan.pool.budget_bytes} * spec.ports;
  if (spec.mtu != 0) plan.expected.mtu = spec.mtu;
  plan.cards = cards_among(spec.all_ports);
  if (!plan_kind(spec, plan, problem)) return false;
  if (plan.device.bus == "pci") plan.cards.push_back(plan.device.name);  // a software RDMA device's wire
  plan.expected.buffer_bytes = plan.pool.data_room + kTxHeadroom;
  plan.device.data_room = plan.pool.data_room;
  return true;
}

}  // namespace bypass::dpdk
