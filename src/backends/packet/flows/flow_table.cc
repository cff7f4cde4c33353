#include "backends/packet/flows/flow_table.h"

#include <netinet/in.h>

#include "backends/packet/flows/bpf.h"

namespace bypass::packet {
namespace {

constexpr std::uint32_t kMostFlows = 65'536;

bool is_nothing(const Endpoint& end) {
  return end.address.is_any() && end.port == 0;
}

bool is_whole(const Endpoint& end) {
  return !end.address.is_any() && end.port != 0;
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

bool FlowTable::create() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_HASH;
  attributes.key_size = sizeof(FlowKey);
  attributes.value_size = sizeof(std::uint32_t);
  attributes.max_entries = kMostFlows;
  attributes.map_flags = BPF_F_NO_PREALLOC;
  map_ = Descriptor(bpf(BPF_MAP_CREATE, attributes));
  return map_.is_open();
}

bool FlowTable::add(const FlowKey& key) {
  const std::uint32_t value = 1;
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_.get());
  attributes.key = reinterpret_cast<std::uint64_t>(&key);
  attributes.value = reinterpret_cast<std::uint64_t>(&value);
  attributes.flags = BPF_NOEXIST;
  return bpf(BPF_MAP_UPDATE_ELEM, attributes) == 0;
}

bool FlowTable::remove(const FlowKey& key) {
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_.get());
  attributes.key = reinterpret_cast<std::uint64_t>(&key);
  return bpf(BPF_MAP_DELETE_ELEM, attributes) == 0;
}

std::vector<FlowKey> FlowTable::keys() const {
  std::vector<FlowKey> keys;
  FlowKey next;
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_.get());
  attributes.next_key = reinterpret_cast<std::uint64_t>(&next);
  while (bpf(BPF_MAP_GET_NEXT_KEY, attributes) == 0) {
    keys.push_back(next);
    attributes.key = reinterpret_cast<std::uint64_t>(&keys.back());
  }
  return keys;
}

}  // namespace bypass::packet
