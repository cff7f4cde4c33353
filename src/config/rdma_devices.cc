#include "config/rdma_devices.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "backends/soft_name.h"
#include "config/port_check.h"
#include "config/settings.h"
#include "os/net/address_text.h"
#include "stack/context.h"
#include "stack/ip/route.h"

namespace bypass::runtime {
namespace {

std::string first_line(const std::string& path) {
  char text[128];
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text);
  if (fd >= 0) close(fd);
  if (got <= 0) return "";
  std::string line(text, static_cast<std::size_t>(got));
  return line.substr(0, line.find('\n'));
}

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) return names;
  while (const dirent* const entry = readdir(opened))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(opened);
  std::sort(names.begin(), names.end());
  return names;
}

bool is_rdma_kind(const PortConfig& port) {
  return port.kind == "verbs" || port.kind == "auto";
}

void report(Config& config, const char* name, std::string text) {
  config.problems.push_back(config.problem_of(name, std::move(text)));
}

bool has(const std::vector<Prefix>& own, const IpAddress& address) {
  return std::any_of(own.begin(), own.end(), [&](const Prefix& prefix) { return prefix.address == address; });
}

std::size_t count_v4(const std::vector<Prefix>& addresses) {
  return static_cast<std::size_t>(
      std::ranges::count_if(addresses, [](const Prefix& each) { return each.address.is_v4(); }));
}

// Whether the addresses fit into the stack's table for one interface.
bool fits(Config& config, const char* name, const PortConfig& port) {
  const auto too_many = [&](std::size_t count, std::size_t most, const char* what) {
    if (count <= most) return false;
    report(config, name,
           "shares " + port.interface + ", which has " + std::to_string(count) + " " + what +
               "; accepted are at most " + std::to_string(most));
    return true;
  };
  return !too_many(count_v4(port.addresses), Interface::kMaxAddresses, "IPv4 addresses") &&
         !too_many(port.routes.size(), Interface::kMaxRoutes, "routes by a gateway");
}

bool is_on_link(const PortConfig& port, const KernelNetwork::Route& route) {
  // The stack cannot ask for a router that is not on the link (onlink).
  const auto holds = [&](const Prefix& prefix) { return prefix.contains(route.gateway); };
  const auto is_own = [&](const Prefix& prefix) {
    return prefix.length == route.destination.length && prefix.contains(route.destination.address);
  };
  return route.gateway.is_any() ? std::ranges::any_of(port.addresses, is_own)
                                : route.gateway.is_v4() && std::ranges::any_of(port.addresses, holds);
}

using Destinations = std::set<std::pair<decltype(IpAddress::bytes), std::uint8_t>>;

// If there are several routes to a destination, the kernel takes the one with the best metric, which comes first.
bool is_first(Destinations& seen, const Prefix& destination) {
  return seen.emplace(destination.address.bytes, destination.length).second;
}

void take_routes(PortConfig& port, const KernelNetwork& network, int interface) {
  Destinations seen;
  port.routes.clear();
  for (const KernelNetwork::Route& route : network.routes)
    if (is_first(seen, route.destination) && route.interface == interface && !route.gateway.is_any() &&
        is_on_link(port, route))
      port.routes.push_back({route.destination, route.gateway});
}

// Makes the port share the interface if its addresses are the kernel's there, or shall be.
void share(Config& config, const char* name, PortConfig& port, const KernelNetwork& network,
           const std::string& interface) {
  const int index = network.index_of(interface);
  const std::vector<Prefix> own = network.addresses_of(index);
  if (index == 0 || own.empty()) return;
  const std::vector<Prefix> chosen = port.addresses;
  if (port.addresses.empty()) port.addresses = own;
  const auto kernels = static_cast<std::size_t>(std::count_if(
      port.addresses.begin(), port.addresses.end(), [&](const Prefix& each) { return has(own, each.address); }));
  if (kernels == 0) return;
  if (kernels != port.addresses.size())
    return report(config, name,
                  "has addresses of the kernel's on " + interface +
                      " beside others; accepted are either the kernel's, which it shares then, or the port's own");
  port.shared = true;
  port.interface = interface;
  port.interface_index = index;
  port.chosen = chosen;
  port.follows_mtu = port.mtu == 0;
  if (port.follows_mtu) port.mtu = network.mtu_of(index);
  take_routes(port, network, index);
  port.shared = fits(config, name, port);
}

// A port on a software device uses that device's wire. The stack's wire is IPv4.
void take_from_wire(PortConfig& port, const PortConfig& wire) {
  port.chosen = port.addresses.empty() ? wire.chosen : port.addresses;
  if (port.addresses.empty()) port.addresses = wire.addresses;
  std::erase_if(port.addresses, [](const Prefix& prefix) { return !prefix.address.is_v4(); });
  port.shared = wire.shared;
  port.interface = wire.interface;
  port.interface_index = wire.interface_index;
  port.routes = wire.routes;
  port.follows_mtu = port.mtu == 0 && wire.follows_mtu;
  if (port.mtu == 0) port.mtu = wire.mtu;
  if (port.gateways.empty() && !wire.shared) port.gateways = wire.gateways;
}

void complete_port(Config& config, PortConfig& port, const KernelNetwork& network, const std::string& devices) {
  if (const auto index = soft_index(port.target)) {
    if (*index < config.soft.size()) return take_from_wire(port, config.soft[*index]);
    return report(
        config, "BYPASS_PORT",
        "has the port '" + port_text(port) + "', a software device that nothing makes; " + std::string(kSoftMaking));
  }
  share(config, "BYPASS_ADDR", port, network, interface_of_device(port.target, devices));
  if (port.shared) std::erase_if(port.addresses, [](const Prefix& prefix) { return !prefix.address.is_v4(); });
}

PortConfig verbs_port(std::string target) {
  PortConfig port;
  port.kind = "verbs";
  port.target = std::move(target);
  return port;
}

std::vector<PortConfig> find_ports(const Config& config, const KernelNetwork& network, const std::string& devices) {
  std::vector<PortConfig> found;
  for (const std::string& device : entries_of(devices)) {
    const int interface = network.index_of(interface_of_device(device, devices));
    if (interface != 0 && !network.addresses_of(interface).empty()) found.push_back(verbs_port(device));
  }
  for (std::size_t i = 0; i < config.soft.size(); i++) found.push_back(verbs_port("soft" + std::to_string(i)));
  return found;
}

void replace_auto(Config& config, const KernelNetwork& network, const std::string& devices) {
  std::vector<PortConfig> ports;
  for (const PortConfig& port : config.ports) {
    if (port.kind != "auto") {
      ports.push_back(port);
      continue;
    }
    const std::vector<PortConfig> found = find_ports(config, network, devices);
    if (found.empty())
      report(config, "BYPASS_PORT",
             "finds no RDMA device with an Ethernet interface that has an address (see: ibv_devices, ip address); a "
             "software device is made by BYPASS_SOFT=WIRE");
    ports.insert(ports.end(), found.begin(), found.end());
  }
  if (ports.size() > Context::kMaxPorts) ports.resize(Context::kMaxPorts);
  config.ports = std::move(ports);
}

// The first port of a device need not be named.
std::string whole_name(const PortConfig& port) {
  return port.target.find(':') == std::string::npos ? port.target + ":1" : port.target;
}

// Only now is it known which devices `auto` means, and which addresses a device has.
void check_ports(Config& config) {
  std::set<std::string> seen;
  for (const PortConfig& port : config.ports) {
    if (port.kind != "verbs") continue;
    if (!seen.insert(whole_name(port)).second) report(config, "BYPASS_PORT", "has '" + port_text(port) + "' twice");
    if (port.addresses.empty() && soft_index(port.target))
      report(config, "BYPASS_ADDR",
             "gives no IPv4 address to the port '" + port_text(port) + "', and its wire has none; accepted is " +
                 accepted_text(*setting_by_env("BYPASS_ADDR")));
    for (const IpAddress& gateway : port.gateways)
      if (const std::string problem = gateway.is_v4() ? gateway_problem(port, gateway) : ""; !problem.empty())
        report(config, "BYPASS_GATEWAY", problem);
  }
}

// The prefixes that lead elsewhere, this host's other addresses included.
class Others {
 public:
  Others(const std::vector<PortConfig>& ports, const KernelNetwork& network) : ports_(ports), network_(network) {}

  [[nodiscard]] std::vector<Prefix> find() const {
    std::vector<Prefix> others;
    Destinations seen;
    for (const KernelNetwork::Route& route : network_.routes)
      if (is_first(seen, route.destination) && !is_taken(route)) others.push_back(route.destination);
    for (const KernelNetwork::Address& each : network_.addresses) {
      const std::uint8_t whole = each.prefix.address.is_v4() ? 32 : 128;
      if (!is_taken(each)) others.push_back({each.prefix.address, whole});
    }
    return others;
  }

 private:
  [[nodiscard]] bool is_on(const PortConfig& port, int interface) const {
    return port.shared && interface != 0 && network_.index_of(port.interface) == interface;
  }
  [[nodiscard]] bool is_taken(const KernelNetwork::Route& route) const {
    const auto has_it = [&](const RouteVia& via) {
      return via.destination.address == route.destination.address &&
             via.destination.length == route.destination.length && via.gateway == route.gateway;
    };
    return std::ranges::any_of(ports_, [&](const PortConfig& port) {
      return is_on(port, route.interface) &&
             (route.gateway.is_any() ? is_on_link(port, route) : std::ranges::any_of(port.routes, has_it));
    });
  }
  [[nodiscard]] bool is_taken(const KernelNetwork::Address& each) const {
    return std::ranges::any_of(ports_, [&](const PortConfig& port) {
      return is_on(port, each.interface) && has(port.addresses, each.prefix.address);
    });
  }

  const std::vector<PortConfig>& ports_;
  const KernelNetwork& network_;
};

template <typename T>
void keep_most(std::vector<T>& all, std::size_t most, const PortConfig& port, const char* what, PortNetwork& now) {
  if (all.size() <= most) return;
  now.left_out.push_back(port.interface + " has " + std::to_string(all.size()) + " " + what +
                         "; those beyond the first " + std::to_string(most) + " are the kernel's alone");
  all.resize(most);
}

// Reads a port that shares its interface again. What does not fit into the stack's tables stays with the kernel.
void renew(PortConfig& port, const KernelNetwork& network, PortNetwork& now) {
  const int index = network.index_of(port.interface);
  const std::vector<Prefix> own = network.addresses_of(index);
  port.interface_index = index;
  port.addresses = port.chosen.empty() ? own : port.chosen;
  std::erase_if(port.addresses, [&](const Prefix& each) { return !each.address.is_v4() || !has(own, each.address); });
  keep_most(port.addresses, Interface::kMaxAddresses, port, "IPv4 addresses", now);
  if (port.follows_mtu && index != 0) port.mtu = network.mtu_of(index);
  take_routes(port, network, index);
  keep_most(port.routes, Interface::kMaxRoutes - (port.gateways.empty() ? 0 : 1), port, "routes by a gateway", now);
}

}  // namespace

std::string interface_of_device(const std::string& target, const std::string& devices) {
  const std::size_t colon = target.find(':');
  const std::string device = devices + "/" + target.substr(0, colon);
  const std::string port = colon == std::string::npos ? "1" : target.substr(colon + 1);
  std::string name = first_line(device + "/ports/" + port + "/gid_attrs/ndevs/0");
  if (!name.empty()) return name;
  const std::vector<std::string> interfaces = entries_of(device + "/device/net");  // kernels before 4.14
  return interfaces.empty() ? "" : interfaces.front();
}

bool asks_the_kernel(const Config& config) {
  const auto asks = [](const PortConfig& wire) { return is_rdma_kind(wire) || is_interface_kind(wire.kind); };
  return config.ok() && (std::ranges::any_of(config.ports, is_rdma_kind) || std::ranges::any_of(config.soft, asks));
}

void complete_from_kernel(Config& config, const KernelNetwork& network, const std::string& devices) {
  const bool of_soft = config.values[setting_index(*setting_by_env("BYPASS_SOFT_ADDR"))].origin != Origin::kDefault;
  for (PortConfig& wire : config.soft) {
    if (is_rdma_kind(wire))
      report(
          config, "BYPASS_SOFT",
          "has '" + port_text(wire) +
              "', which stands for an RDMA device; accepted is what carries frames, as vhost:, virtio: or af_packet:");
    if (is_interface_kind(wire.kind))
      share(config, of_soft ? "BYPASS_SOFT_ADDR" : "BYPASS_ADDR", wire, network, wire.target);
  }
  for (PortConfig& wire : config.soft)
    for (const RouteVia& route : wire.routes)
      if (route.destination.length == 0 && wire.gateways.empty()) wire.gateways.push_back(route.gateway);
  replace_auto(config, network, devices);
  for (PortConfig& port : config.ports)
    if (port.kind == "verbs") complete_port(config, port, network, devices);
  check_ports(config);
  if (shares_interface(config)) config.others = Others(config.ports, network).find();
}

bool shares_interface(const Config& config) {
  return std::ranges::any_of(config.ports, [](const PortConfig& port) { return port.shared; });
}

PortNetwork follow_kernel(const Config& config, const KernelNetwork& network) {
  PortNetwork now{config.ports, {}, {}};
  for (PortConfig& port : now.ports)
    if (port.shared) renew(port, network, now);
  now.others = Others(now.ports, network).find();
  return now;
}

}  // namespace bypass::runtime
