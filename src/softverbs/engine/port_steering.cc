#include "softverbs/engine/port_steering.h"

#include <algorithm>
#include <cerrno>
#include <type_traits>

#include "softverbs/engine/engine.h"
#include "stack/frame/wire.h"

namespace bypass::rdma {
namespace {

using Key = FlowRule::Key;

template <typename T>
bool is_none(const T& mask) {
  return mask == T{};
}
bool is_whole(const MacAddress& mask) {
  return mask == MacAddress::broadcast();
}
bool is_whole(const IpAddress& mask) {
  return std::ranges::all_of(mask.bytes, [](std::uint8_t byte) { return byte == 0xff; });
}
template <typename T>
requires std::is_unsigned_v<T>
bool is_whole(T mask) {
  return mask == static_cast<T>(~T{0});
}

bool comes_as_copy(const Key& value, const Key& mask) {
  const bool to_group = (value.destination.bytes[0] & mask.destination.bytes[0] & 1) != 0 ||
                        (is_whole(mask.ip_destination) && value.ip_destination.is_multicast());
  const bool arp = is_whole(mask.ether_type) && value.ether_type == wire::kEtherTypeArp;
  const bool icmpv6 = is_whole(mask.protocol) && value.protocol == kProtocolIcmpv6;
  return to_group || arp || icmpv6;
}

// True if only the frame's destination matters.
bool is_every_frame(const Key& mask) {
  Key rest = mask;
  rest.destination = {};
  return rest == Key{};
}

// Only a remote end with both address and port, or any remote end, can be steered.
bool can_be_steered(const Key& value, const Key& mask) {
  const bool ports = value.protocol == wire::kProtocolTcp || value.protocol == wire::kProtocolUdp;
  const bool whole_remote = is_whole(mask.ip_source) && is_whole(mask.source_port);
  const bool any_remote = is_none(mask.ip_source) && is_none(mask.source_port);
  return ports && is_whole(mask.protocol) && is_whole(mask.destination_port) && is_none(mask.source) &&
         (is_none(mask.ether_type) || is_whole(mask.ether_type)) &&
         (is_none(mask.ip_destination) || is_whole(mask.ip_destination)) && (whole_remote || any_remote);
}

// Whether packets of the family of `local` can match.
bool family_fits(const Key& value, const Key& mask, const IpAddress& local) {
  const std::uint16_t type = local.is_v4() ? wire::kEtherTypeIpv4 : kEtherTypeIpv6;
  return (is_none(mask.ether_type) || value.ether_type == type) &&
         (is_none(mask.ip_source) || value.ip_source.is_v4() == local.is_v4());
}

}  // namespace

int flows_of(const FlowRule& rule, const MacAddress& mac, std::span<const ibv_gid> own, std::vector<FlowSpec>& flows) {
  if (rule.type == IBV_FLOW_ATTR_SNIFFER) return EOPNOTSUPP;
  if (rule.type == IBV_FLOW_ATTR_MC_DEFAULT) return 0;
  const Key mask = Steering::mask_of(rule);
  const Key& value = rule.value;
  if (comes_as_copy(value, mask)) return 0;
  if (!is_none(mask.destination) && (!is_whole(mask.destination) || value.destination != mac)) return EOPNOTSUPP;
  if (is_every_frame(mask)) {
    flows.emplace_back();
    return 0;
  }
  if (!can_be_steered(value, mask)) return EOPNOTSUPP;
  const Endpoint remote = is_none(mask.ip_source) ? Endpoint{} : Endpoint{value.ip_source, value.source_port};
  const auto add = [&](const IpAddress& local) {
    if (family_fits(value, mask, local)) flows.push_back({value.protocol, {local, value.destination_port}, remote});
  };
  if (is_whole(mask.ip_destination)) {
    add(value.ip_destination);
  } else {
    for (const ibv_gid& gid : own) add(address_of(gid));
  }
  return flows.empty() ? EOPNOTSUPP : 0;
}

PortSteering::~PortSteering() {
  for (const auto& [flow, uses] : uses_) port_.steer(flow, false);
}

int PortSteering::add(std::span<const FlowSpec> flows) {
  for (std::size_t i = 0; i < flows.size(); i++) {
    std::uint32_t& uses = uses_[flows[i]];
    if (uses++ != 0 || port_.steer(flows[i], true)) continue;
    uses_.erase(flows[i]);
    remove(flows.first(i));
    return EADDRINUSE;
  }
  return 0;
}

void PortSteering::remove(std::span<const FlowSpec> flows) {
  for (const FlowSpec& flow : flows) remove(flow);
}

void PortSteering::remove(const FlowSpec& flow) {
  const auto found = uses_.find(flow);
  if (--found->second != 0) return;
  port_.steer(flow, false);
  uses_.erase(found);
}

int PortSteering::take_roce(std::span<const ibv_gid> own) {
  if (!is_needed() || has_roce_) return 0;
  std::vector<FlowSpec> flows;
  for (const ibv_gid& gid : own) flows.push_back({wire::kProtocolUdp, {address_of(gid), kRocePort}, {}});
  const int error = add(flows);
  has_roce_ = error == 0;
  return error;
}

}  // namespace bypass::rdma
