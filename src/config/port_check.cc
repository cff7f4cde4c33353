#include "config/port_check.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "backends/pci_answers.h"
#include "backends/pci_card.h"
#include "backends/soft_name.h"
#include "backends/wire_target.h"
#include "config/settings.h"
#include "os/net/address_text.h"

namespace bypass::runtime {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The end that serves the socket makes it. The other end may start first, before the socket exists.
std::string check_socket(const WireTarget& target, bool makes_it) {
  const std::string path(target.path);
  if (path.back() == '/') return "names a folder; accepted is the path of a socket in it";
  const std::string folder = folder_of(path);
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return "the folder " + folder + ": " + strerrordesc_np(errno);
  if (!S_ISDIR(status.st_mode)) return folder + " is no folder";
  if (stat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) return "is no socket";
  if (std::string problem = wire_problem(target); !problem.empty()) return problem;
  if (faccessat(AT_FDCWD, folder.c_str(), makes_it ? W_OK | X_OK : X_OK, AT_EACCESS) == 0) return "";
  return (makes_it ? "no socket can be made in " : "no socket can be reached in ") + folder + ": " +
         strerrordesc_np(errno);
}

std::optional<IpAddress> address_of(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET)
    return IpAddress::from_v4(be32_to_host(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr));
  if (address->sa_family != AF_INET6) return std::nullopt;
  IpAddress v6;
  std::memcpy(v6.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, v6.bytes.size());
  return v6;
}

// Both would answer for the address, and the kernel would reset our connections.
std::string check_addresses(const PortConfig& port) {
  if (port.shared) return "";
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string problem;
  for (const ifaddrs* each = all; each != nullptr && problem.empty(); each = each->ifa_next) {
    if (port.target != each->ifa_name) continue;
    const auto kernels = address_of(each->ifa_addr);
    for (const Prefix& prefix : port.addresses)
      if (kernels == prefix.address)
        problem = "the kernel has the address " + std::string(to_text(prefix.address).view()) +
                  " on this interface, and both would answer; give the port an address of its own, or take this one " +
                  "from the kernel (ip addr del " + std::string(to_text(prefix).view()) + " dev " + port.target + ")";
  }
  freeifaddrs(all);
  return problem;
}

std::string check_interface(const PortConfig& port) {
  if (if_nametoindex(port.target.c_str()) != 0) return check_addresses(port);
  return errno == ENODEV ? "no network interface of that name (see: ip link)" : strerrordesc_np(errno);
}

std::string check_tap(const PortConfig& port) {
  if (access("/dev/net/tun", R_OK | W_OK) == 0) return check_addresses(port);
  return std::string("/dev/net/tun: ") + strerrordesc_np(errno);
}

// The card has all ports' memory, and DPDK's own.
std::string check_card_memory(const Config& config, const std::string& address) {
  return lock_problem(read_pci_card(address), dpdk_bytes(config.port_memory, config.ports.size()),
                      lock_limit_of_process());
}

// A software device (softN) is found by the one that makes it.
std::string check_verbs(const std::string& target) {
  const std::string name = target.substr(0, target.find(':'));
  if (soft_index(target) || access(("/sys/class/infiniband/" + name).c_str(), F_OK) == 0) return "";
  return "no RDMA device of that name (see: ibv_devices); a software one is soft0, which BYPASS_SOFT=WIRE makes";
}

}  // namespace

bool is_interface_kind(std::string_view kind) {
  return kind == "netdev" || kind == "af_xdp" || kind == "af_packet";
}

std::optional<std::string> card_of(const PortConfig& port) {
  if (port.kind != "pci" && port.kind != "dpdk") return std::nullopt;
  return full_pci_address(std::string_view(port.target).substr(0, port.target.find(',')));
}

std::string quick_check(const PortConfig& port) {
  if (port.kind == "vhost" || port.kind == "virtio")
    return check_socket(wire_target(port.target), port.kind == "vhost");
  if (is_interface_kind(port.kind)) return check_interface(port);
  if (port.kind == "tap") return check_tap(port);
  if (const auto card = card_of(port)) return card_problem(read_pci_card(*card));
  if (port.kind == "verbs") return check_verbs(port.target);
  return "";
}

std::string quick_check(const Config& config, const PortConfig& port) {
  const auto soft = port.kind == "verbs" ? soft_index(port.target) : std::nullopt;
  if (!soft || *soft >= config.soft.size()) {
    std::string problem = quick_check(port);
    const auto card = problem.empty() ? card_of(port) : std::nullopt;
    return card ? check_card_memory(config, *card) : problem;
  }
  const PortConfig& wire = config.soft[*soft];
  const std::string problem = quick_check(wire);
  return problem.empty() ? "" : soft_problem(wire, problem);
}

std::string soft_problem(const PortConfig& wire, const std::string& problem) {
  return "BYPASS_SOFT=" + port_text(wire) + ": " + problem;
}

std::string named_problem(const Config& config, const PortConfig& port, const std::string& problem) {
  if (problem.starts_with("BYPASS_")) return problem;
  const Setting& setting = *setting_by_env("BYPASS_PORT");
  const bool of_file = config.values[setting_index(setting)].origin == Origin::kFile;
  const std::string name = std::string(of_file ? setting.key : setting.env) + "=";
  if (problem.starts_with(port_text(port) + ": ")) return name + problem;
  return name + port_text(port) + ": " + problem;
}

}  // namespace bypass::runtime
