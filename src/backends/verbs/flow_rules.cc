#include "backends/verbs/flow_rules.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "stack/frame/wire.h"

namespace bypass::verbs {
namespace {

// The parts of a rule, which a card's driver expects one behind the other.
struct Request {
  ibv_flow_attr attributes;
  ibv_flow_spec_eth ethernet;
  ibv_flow_spec_ipv4 ip;
  ibv_flow_spec_tcp_udp ports;
};
static_assert(sizeof(Request) == sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth) + sizeof(ibv_flow_spec_ipv4) +
                                     sizeof(ibv_flow_spec_tcp_udp));

void match_address(const IpAddress& address, std::uint32_t& value, std::uint32_t& mask) {
  if (address.is_any()) return;
  value = host_to_be32(address.v4());
  mask = 0xffff'ffff;
}

void match_port(std::uint16_t port, std::uint16_t& value, std::uint16_t& mask) {
  if (port == 0) return;
  value = host_to_be16(port);
  mask = 0xffff;
}

ibv_flow* create(ibv_qp* queue, std::uint8_t number, const MacAddress& mac, const FlowSpec& flow) {
  Request request{};
  request.attributes.type = IBV_FLOW_ATTR_NORMAL;
  request.attributes.size = sizeof request;
  request.attributes.num_of_specs = 3;
  request.attributes.port = number;
  request.ethernet.type = IBV_FLOW_SPEC_ETH;
  request.ethernet.size = sizeof request.ethernet;
  std::memcpy(request.ethernet.val.dst_mac, mac.bytes.data(), mac.bytes.size());
  std::memset(request.ethernet.mask.dst_mac, 0xff, sizeof request.ethernet.mask.dst_mac);
  request.ethernet.val.ether_type = host_to_be16(wire::kEtherTypeIpv4);
  request.ethernet.mask.ether_type = 0xffff;
  request.ip.type = IBV_FLOW_SPEC_IPV4;
  request.ip.size = sizeof request.ip;
  match_address(flow.local.address, request.ip.val.dst_ip, request.ip.mask.dst_ip);
  match_address(flow.remote.address, request.ip.val.src_ip, request.ip.mask.src_ip);
  request.ports.type = flow.protocol == wire::kProtocolUdp ? IBV_FLOW_SPEC_UDP : IBV_FLOW_SPEC_TCP;
  request.ports.size = sizeof request.ports;
  match_port(flow.local.port, request.ports.val.dst_port, request.ports.mask.dst_port);
  match_port(flow.remote.port, request.ports.val.src_port, request.ports.mask.src_port);
  return ibv_create_flow(queue, &request.attributes);
}

// The errors that the kernel returns for every call to a device that has been taken away or has failed. They may come
// before the event that tells of the loss.
bool is_lost(int error) {
  return error == EIO || error == ENODEV;
}

}  // namespace

void FlowRules::note(Rule& rule, ibv_flow* made, int error) {
  rule.refused = made == nullptr && !is_lost(error);
  rule.made = made;
}

template <typename Work>
void FlowRules::without_lock(std::unique_lock<std::mutex>& lock, Rule& rule, const Work& work) {
  rule.taken.store(1, std::memory_order_relaxed);
  lock.unlock();
  work();
  lock.lock();
  rule.taken.store(0, std::memory_order_release);
  rule.taken.notify_all();
}

bool FlowRules::add(const FlowSpec& flow) {
  const std::lock_guard lock(mutex_);
  Rule& rule = rules_[flow];
  rule.users++;
  if (queue_ == nullptr || rule.made != nullptr || rule.taken.load(std::memory_order_relaxed) != 0) return true;
  ibv_flow* const made = create(queue_, number_, mac_, flow);
  note(rule, made, errno);
  return !rule.refused;
}

bool FlowRules::remove(const FlowSpec& flow) {
  std::unique_lock lock(mutex_);
  const auto found = rules_.find(flow);
  if (found == rules_.end()) return false;
  Rule& rule = found->second;
  if (--rule.users != 0) return true;
  while (rule.taken.load(std::memory_order_relaxed) != 0) {
    lock.unlock();
    rule.taken.wait(1, std::memory_order_acquire);
    lock.lock();
  }
  if (rule.users != 0) return true;
  if (rule.made != nullptr) (void)ibv_destroy_flow(rule.made);
  rules_.erase(found);
  return true;
}

// Other rules may come and go while the lock is released for one rule; that rule stays.
std::size_t FlowRules::begin(ibv_qp* queue, std::uint8_t number, const MacAddress& mac) {
  std::size_t lost = 0;
  std::unique_lock lock(mutex_);
  queue_ = queue;
  number_ = number;
  mac_ = mac;
  for (auto& each : rules_) {
    Rule& rule = each.second;
    if (rule.made != nullptr || rule.users == 0) continue;
    const bool told = rule.refused;
    ibv_flow* made = nullptr;
    int error = 0;
    without_lock(lock, rule, [&] {
      made = create(queue, number, mac, each.first);
      error = errno;
    });
    note(rule, made, error);
    if (rule.refused && !told) lost++;
  }
  return lost;
}

void FlowRules::suspend() {
  const std::lock_guard lock(mutex_);
  queue_ = nullptr;
}

void FlowRules::destroy() {
  std::unique_lock lock(mutex_);
  queue_ = nullptr;
  for (auto& [flow, rule] : rules_)
    if (ibv_flow* const made = std::exchange(rule.made, nullptr); made != nullptr)
      without_lock(lock, rule, [&] { (void)ibv_destroy_flow(made); });
}

std::size_t FlowRules::size() const {
  const std::lock_guard lock(mutex_);
  return rules_.size();
}

std::vector<FlowSpec> FlowRules::steered() const {
  const std::lock_guard lock(mutex_);
  std::vector<FlowSpec> flows;
  for (const auto& [flow, rule] : rules_)
    if (rule.users != 0 && !rule.refused) flows.push_back(flow);
  return flows;
}

bool FlowRules::is_steered(const FlowSpec& flow) const {
  const std::lock_guard lock(mutex_);
  const auto found = rules_.find(flow);
  return found != rules_.end() && found->second.users != 0 && !found->second.refused;
}

}  // namespace bypass::verbs
