#include "backends/packet/flow_map.h"

#include <netinet/in.h>

#include <cerrno>

#include "backends/packet/bpf.h"
#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

constexpr std::uint32_t kMostFlows = 65'536;

bool is_nothing(const Endpoint& end) {
  return end.address.is_any() && end.port == 0;
}

bool is_whole(const Endpoint& end) {
  return !end.address.is_any() && end.port != 0;
}

bool is_every_frame(const FlowKey& key) {
  return key == FlowKey{};
}

// What claims and messages call it.
std::string flow_text(const FlowSpec& flow) {
  if (flow.protocol == 0) return "every frame";
  return (flow.protocol == IPPROTO_TCP ? "TCP port " : "UDP port ") + std::to_string(flow.local.port) + " of " +
         text_of(flow.local.address);
}

}  // namespace

std::optional<FlowKey> key_of(const FlowSpec& flow) {
  FlowKey key;
  if (flow.protocol == 0 && is_nothing(flow.local) && is_nothing(flow.remote)) return key;
  if (flow.protocol != IPPROTO_TCP && flow.protocol != IPPROTO_UDP) return std::nullopt;
  if (!is_whole(flow.local) || (!is_whole(flow.remote) && !is_nothing(flow.remote))) return std::nullopt;
  key.protocol = flow.protocol;
  key.local = flow.local.address;
  key.local_port = host_to_be16(flow.local.port);
  if (is_nothing(flow.remote)) return key;
  if (flow.remote.address.is_v4() != flow.local.address.is_v4()) return std::nullopt;
  key.remote = flow.remote.address;
  key.remote_port = host_to_be16(flow.remote.port);
  return key;
}

bool FlowMap::create(const std::string& interface) {
  interface_ = interface;
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_HASH;
  attributes.key_size = sizeof(FlowKey);
  attributes.value_size = sizeof(std::uint32_t);
  attributes.max_entries = kMostFlows;
  attributes.map_flags = BPF_F_NO_PREALLOC;
  map_ = Descriptor(bpf(BPF_MAP_CREATE, attributes));
  return map_.is_open();
}

bool FlowMap::steer(const FlowSpec& flow, bool add_it) {
  const auto key = key_of(flow);
  return key && (add_it ? add(*key, flow) : remove(*key));
}

bool FlowMap::add(const FlowKey& key, const FlowSpec& flow) {
  Claim claim;
  const bool shareable = !is_every_frame(key) && key.remote_port != 0;
  if (!shareable && !claims_.contains(key) && !claim.take(interface_, flow_text(flow))) {
    const std::string text =
        interface_ + ": another process" + claim.holder() + " has " + flow_text(flow) + " steered to it";
    host->log(LogLevel::kWarn, text.c_str());
    return false;
  }
  const std::uint32_t value = 1;
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_.get());
  attributes.key = reinterpret_cast<std::uint64_t>(&key);
  attributes.value = reinterpret_cast<std::uint64_t>(&value);
  attributes.flags = BPF_NOEXIST;
  if (bpf(BPF_MAP_UPDATE_ELEM, attributes) != 0) return false;
  if (!shareable) claims_.emplace(key, std::move(claim));
  return true;
}

bool FlowMap::remove(const FlowKey& key) {
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_.get());
  attributes.key = reinterpret_cast<std::uint64_t>(&key);
  const bool removed = bpf(BPF_MAP_DELETE_ELEM, attributes) == 0;
  claims_.erase(key);
  return removed;
}

}  // namespace bypass::packet
