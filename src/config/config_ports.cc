// The lists of ports, joined into ports: whether they fit each other, and what a port of them is for a backend.

#include <algorithm>
#include <optional>

#include "backends/soft_name.h"
#include "config/config_draft.h"
#include "config/port_kinds.h"
#include "config/settings.h"
#include "config/settings_text.h"
#include "os/net/address_text.h"
#include "stack/context.h"

namespace bypass::runtime {

namespace {

// More entries than ports is an error; with fewer entries the rest of the ports has none.
template <typename T>
bool fits(Draft& draft, std::string_view env, const std::vector<T>& list, std::size_t ports) {
  if (list.size() <= ports) return true;
  add_problem(draft, env,
              "has " + std::to_string(list.size()) + " entries for " + std::to_string(ports) +
                  (ports == 1 ? " port" : " ports") + "; accepted is one entry a port");
  return false;
}

// The stack's own limit. The ports lie in a fixed array, and more would be written past its end.
bool few_enough(Draft& draft, std::string_view env, std::size_t ports) {
  if (ports <= Context::kMaxPorts) return true;
  add_problem(draft, env,
              "has " + std::to_string(ports) + " ports; accepted are at most " + std::to_string(Context::kMaxPorts));
  return false;
}

// A list with a parse error says nothing about the ports.
bool has_problem(const Draft& draft, std::string_view env) {
  const std::string_view key = setting_by_env(env)->key;
  return std::ranges::any_of(draft.problems, [&](const ConfigProblem& p) { return p.name == env || p.name == key; });
}

bool is_default(const Draft& draft, std::string_view env) {
  return draft.values[setting_index(*setting_by_env(env))].origin == Origin::kDefault;
}

// A setting of ports without a port is probably a mistake, so it is reported. `none` is accepted as meant, and a
// setting with a problem already is not reported twice.
bool lacks_ports(const Draft& draft) {
  return draft.ok() && draft.port_names.empty() && is_default(draft, "BYPASS_PORT");
}

std::string no_effect() {
  return "has no effect without BYPASS_PORT; accepted is " + accepted_text(*setting_by_env("BYPASS_PORT"));
}

void check_unused(Draft& draft) {
  if (!lacks_ports(draft)) return;
  if (!draft.soft_names.empty()) return;  // the lists belong to the wires of the software RDMA devices
  for (const std::string_view env : {"BYPASS_ADDR", "BYPASS_GATEWAY", "BYPASS_MAC", "BYPASS_MTU"}) {
    if (!is_default(draft, env)) add_problem(draft, env, no_effect());
  }
}

void check_soft_unused(Draft& draft) {
  if (!draft.ok() || !draft.soft_names.empty() || !is_default(draft, "BYPASS_SOFT")) return;
  if (!is_default(draft, "BYPASS_SOFT_ADDR"))
    add_problem(draft, "BYPASS_SOFT_ADDR",
                "has no effect without BYPASS_SOFT; accepted is " + accepted_text(*setting_by_env("BYPASS_SOFT")));
}

// A software device's name alone is not enough. The device must be made, and there must be a port on it or another
// device beside it.
void check_rdma(Draft& draft) {
  if (!draft.ok() || draft.rdma != RdmaMode::kDevice) return;
  const std::string device = quoted(draft.rdma_device);
  if (const auto index = soft_index(draft.rdma_device); index && *index >= draft.soft_names.size())
    return add_problem(draft, "BYPASS_RDMA",
                       "names the software device " + device + ", which nothing makes; " + std::string(kSoftMaking));
  if (lacks_ports(draft))
    add_problem(draft, "BYPASS_RDMA",
                "names the device " + device + ", which has no effect without BYPASS_PORT; accepted is " +
                    accepted_text(*setting_by_env("BYPASS_RDMA")));
}

// A frame on that interface is for one of the ports, and they cannot tell for which one.
void check_interfaces(Draft& draft) {
  for (std::size_t i = 1; i < draft.ports.size(); i++) {
    const PortConfig& port = draft.ports[i];
    if (find_kind(port.kind)->target != Target::kInterface) continue;
    for (std::size_t before = 0; before < i; before++) {
      const PortConfig& other = draft.ports[before];
      if (find_kind(other.kind)->target != Target::kInterface || other.target != port.target || other.kind == port.kind)
        continue;
      add_problem(draft, "BYPASS_PORT",
                  "has " + quoted(port_text(other)) + " and " + quoted(port_text(port)) +
                      ", which are one interface; accepted is one port an interface");
    }
  }
}

// The second port would find what the first has taken. Ports without a name of their own may be repeated.
void check_doubles(Draft& draft) {
  for (std::size_t i = 0; i < draft.ports.size(); i++) {
    const auto is_same = [&](const PortConfig& other) { return port_text(other) == port_text(draft.ports[i]); };
    const auto before = draft.ports.begin() + static_cast<std::ptrdiff_t>(i);
    if (!draft.ports[i].target.empty() && std::find_if(draft.ports.begin(), before, is_same) != before)
      add_problem(draft, "BYPASS_PORT", "has " + quoted(port_text(draft.ports[i])) + " twice");
  }
  check_interfaces(draft);
}

// Two equal prefixes would leave open on which port a peer is. A longer prefix within a shorter one is a route of its
// own.
std::optional<Prefix> common_prefix(const PortConfig& a, const PortConfig& b) {
  for (const Prefix& one : a.addresses)
    for (const Prefix& other : b.addresses)
      if (one.address != other.address && one.length == other.length && one.address.is_v4() == other.address.is_v4() &&
          !one.address.is_link_local() && one.contains(other.address))
        return other;
  return std::nullopt;
}

void check_prefixes(Draft& draft) {
  for (std::size_t i = 1; i < draft.ports.size(); i++)
    for (std::size_t before = 0; before < i; before++)
      if (const auto shared = common_prefix(draft.ports[before], draft.ports[i]))
        add_problem(draft, "BYPASS_ADDR",
                    "gives " + std::string(to_text(*shared).view()) + " to the port " +
                        quoted(port_text(draft.ports[i])) + ", in the same prefix as an address of " +
                        quoted(port_text(draft.ports[before])) +
                        ", which alone would be used to it; accepted is a prefix of its own for each port");
}

void check_addresses(Draft& draft) {
  if (has_problem(draft, "BYPASS_ADDR")) return;
  std::vector<IpAddress> seen;
  for (const PortConfig& port : draft.ports) {
    if (port.addresses.empty() && find_kind(port.kind)->needs_address)
      add_problem(draft, "BYPASS_ADDR",
                  "gives no address to the port " + quoted(port_text(port)) + "; accepted is " +
                      accepted_text(*setting_by_env("BYPASS_ADDR")));
    for (const Prefix& prefix : port.addresses) {
      if (std::find(seen.begin(), seen.end(), prefix.address) != seen.end())
        add_problem(draft, "BYPASS_ADDR", "gives " + std::string(to_text(prefix.address).view()) + " twice");
      seen.push_back(prefix.address);
    }
  }
}

void check_gateways(Draft& draft, const std::vector<PortConfig>& ports) {
  if (has_problem(draft, "BYPASS_ADDR") || has_problem(draft, "BYPASS_SOFT_ADDR")) return;
  for (const PortConfig& port : ports)
    for (const IpAddress& gateway : port.gateways)
      if (std::string problem = gateway_problem(port, gateway); !problem.empty())
        add_problem(draft, "BYPASS_GATEWAY", std::move(problem));
}

// The wires of the software RDMA devices. With BYPASS_PORT=verbs:soft0, port and device use one wire, and the lists
// hold for both.
void join_soft(Draft& draft) {
  const std::size_t count = draft.soft_names.size();
  if (count == 0 || !few_enough(draft, "BYPASS_SOFT", count)) return;
  if (!fits(draft, "BYPASS_SOFT_ADDR", draft.soft_addresses, count)) return;
  const auto& addresses = draft.soft_addresses.empty() ? draft.addresses : draft.soft_addresses;
  for (std::size_t i = 0; i < count; i++) {
    auto& wire = draft.soft.emplace_back();
    wire.kind = draft.soft_names[i].kind;
    wire.target = draft.soft_names[i].target;
    const auto is_same = [&](const PortConfig& other) { return port_text(other) == port_text(wire); };
    if (!wire.target.empty() && std::find_if(draft.soft.begin(), draft.soft.end() - 1, is_same) != draft.soft.end() - 1)
      add_problem(draft, "BYPASS_SOFT", "has " + quoted(port_text(wire)) + " twice");
    const bool is_socket = wire.kind == "vhost" || wire.kind == "virtio";
    if (is_socket && std::any_of(draft.ports.begin(), draft.ports.end(), is_same))
      add_problem(draft, "BYPASS_SOFT",
                  "has " + quoted(port_text(wire)) +
                      ", which is BYPASS_PORT's, too; the port above a software device is BYPASS_PORT=verbs:soft" +
                      std::to_string(i));
    if (i < addresses.size()) wire.addresses = addresses[i];
    if (i < draft.gateways.size()) wire.gateways = draft.gateways[i];
    if (i < draft.macs.size()) wire.mac = draft.macs[i];
    if (i < draft.mtus.size()) wire.mtu = draft.mtus[i];
  }
  if (draft.ports.empty()) check_gateways(draft, draft.soft);  // otherwise the list may belong to the ports
}

}  // namespace

std::string port_text(const PortConfig& port) {
  return port.target.empty() ? port.kind : port.kind + ":" + port.target;
}

std::string gateway_problem(const PortConfig& port, const IpAddress& gateway) {
  if (port.addresses.empty()) return "";
  const std::string begin = "has " + std::string(to_text(gateway).view()) + ", which ";
  if (std::ranges::any_of(port.addresses, [&](const Prefix& own) { return own.address == gateway; }))
    return begin + "is an address of the port " + quoted(port_text(port)) + " itself";
  if (gateway.is_link_local() ||
      std::ranges::any_of(port.addresses, [&](const Prefix& own) { return own.contains(gateway); }))
    return "";
  return begin + "lies in no prefix of the port " + quoted(port_text(port));
}

void join_ports(Draft& draft) {
  for (const PortName& name : draft.port_names) {
    auto& port = draft.ports.emplace_back();
    port.kind = name.kind;
    port.target = name.target;
  }
  const std::size_t count = draft.ports.size();
  check_unused(draft);
  check_soft_unused(draft);
  if (count > 0 && few_enough(draft, "BYPASS_PORT", count) && fits(draft, "BYPASS_ADDR", draft.addresses, count) &&
      fits(draft, "BYPASS_GATEWAY", draft.gateways, count) && fits(draft, "BYPASS_MAC", draft.macs, count) &&
      fits(draft, "BYPASS_MTU", draft.mtus, count)) {
    for (std::size_t i = 0; i < count; i++) {
      PortConfig& port = draft.ports[i];
      if (i < draft.addresses.size()) port.addresses = draft.addresses[i];
      if (i < draft.gateways.size()) port.gateways = draft.gateways[i];
      if (i < draft.macs.size()) port.mac = draft.macs[i];
      if (i < draft.mtus.size()) port.mtu = draft.mtus[i];
    }
    check_doubles(draft);
    check_addresses(draft);
    check_prefixes(draft);
    check_gateways(draft, draft.ports);
  }
  join_soft(draft);
  check_rdma(draft);
}

PortSpec port_spec(const Config& config, const PortConfig& port, std::size_t ports) {
  PortSpec spec;
  spec.kind = port.kind;
  spec.target = port.target;
  for (const Prefix& prefix : port.addresses) spec.addresses.push_back(prefix.address);
  spec.mac = port.mac;
  spec.mtu = port.mtu;
  spec.share_interface = port.shared;
  spec.interface = port.interface;
  spec.follows_mtu = port.follows_mtu;
  if (port.follows_mtu) spec.mtu = 0;  // the MTU was read with the configuration
  spec.buffer_memory = static_cast<std::uint32_t>(config.port_memory);
  spec.hugepages = config.hugepages;
  spec.ports = static_cast<std::uint16_t>(ports);
  for (const PortConfig& each : config.ports) spec.all_ports.push_back(each.kind + ":" + each.target);
  return spec;
}

PortSpec port_spec(const Config& config, std::size_t index) {
  return port_spec(config, config.ports[index], config.ports.size());
}

}  // namespace bypass::runtime
