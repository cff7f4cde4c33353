#include "config/port_kinds.h"

#include <algorithm>
#include <iterator>

#include "config/config.h"

namespace bypass::runtime {

namespace {

// The second of these has the first one's drivers, too.
constexpr std::string_view kWires = "dpdk", kCards = "cards";

// RDMA devices take the addresses of their network interface.
constexpr KindInfo kKinds[] = {
    {"vhost", "dpdk", Target::kPath, true},
    {"virtio", "dpdk", Target::kPath, true},
    {"netdev", "packet", Target::kInterface, true},
    {"af_xdp", "packet", Target::kInterface, true},
    {"af_packet", "packet", Target::kInterface, true},
    {"tap", "packet", Target::kInterface, true},
    {"pci", "cards", Target::kPci, true},
    {"dpdk", "cards", Target::kDevargs, true},
    {"verbs", "verbs", Target::kDevice, false},
    {"auto", "verbs", Target::kNone, false},
};

}  // namespace

std::span<const KindInfo> port_kinds() {
  return kKinds;
}

const KindInfo* find_kind(std::string_view kind) {
  const auto at = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindInfo& k) { return k.kind == kind; });
  return at == std::end(kKinds) ? nullptr : at;
}

const char* plugin_of_kind(std::string_view kind) {
  const KindInfo* const info = find_kind(kind);
  return info == nullptr ? nullptr : info->plugin;
}

const char* plugin_of_port(const Config& config, const PortConfig& port) {
  const char* const own = plugin_of_kind(port.kind);
  const auto is_cards = [](const PortConfig& each) { return plugin_of_kind(each.kind) == kCards; };
  return own == kWires && std::any_of(config.ports.begin(), config.ports.end(), is_cards) ? kCards.data() : own;
}

}  // namespace bypass::runtime
