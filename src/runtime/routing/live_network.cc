#include "runtime/routing/live_network.h"

#include <algorithm>
#include <new>
#include <utility>

#include "config/rdma_devices.h"

namespace bypass::runtime {
namespace {

bool same(const Prefix& a, const Prefix& b) {
  return a.address == b.address && a.length == b.length;
}

bool same(const std::vector<Prefix>& a, const std::vector<Prefix>& b) {
  return std::ranges::equal(a, b, [](const Prefix& x, const Prefix& y) { return same(x, y); });
}

bool same(const std::vector<RouteVia>& a, const std::vector<RouteVia>& b) {
  return std::ranges::equal(a, b, [](const RouteVia& x, const RouteVia& y) {
    return same(x.destination, y.destination) && x.gateway == y.gateway;
  });
}

}  // namespace

bool is_same_network(const PortConfig& a, const PortConfig& b) {
  return a.mtu == b.mtu && a.interface_index == b.interface_index && same(a.addresses, b.addresses) &&
         same(a.routes, b.routes);
}

LiveNetwork::LiveNetwork(const Config& config)
    : changes_(shares_interface(config)), now_(new PortNetwork{config.ports, config.others, {}}) {}

LiveNetwork::~LiveNetwork() {
  delete now_.load(std::memory_order_relaxed);
}

bool LiveNetwork::replace(PortNetwork next) {
  const PortNetwork* const before = now_.load(std::memory_order_relaxed);
  if (same(before->others, next.others) && std::ranges::equal(before->ports, next.ports, is_same_network)) return false;
  now_.store(new PortNetwork(std::move(next)), std::memory_order_seq_cst);
  replaced_.emplace_back(before);
  if (readers_.load(std::memory_order_seq_cst) == 0) replaced_.clear();
  return true;
}

void LiveNetwork::forget_threads() {
  readers_.store(0, std::memory_order_relaxed);
  new (&replaced_) decltype(replaced_);
}

}  // namespace bypass::runtime
