#include "runtime/routing/decide.h"

#include <net/if.h>

#include <algorithm>

#include "config/port_check.h"

namespace bypass::runtime {

using observe::Reason;

namespace {

Reason reason_of(const RuleDecision& decision) {
  switch (decision.source) {
    case RuleSource::kLoopback:
      return Reason::kLoopback;
    case RuleSource::kDns:
      return Reason::kDns;
    case RuleSource::kUser:
    case RuleSource::kDefault:
      break;
  }
  return decision.action == RuleAction::kFail ? Reason::kRuleFail : Reason::kRuleKernel;
}

/// The number of the port's interface, which the kernel has, too; 0: it has none.
int number_of_interface(const PortConfig& port) {
  if (port.shared) return port.interface_index;
  return is_interface_kind(port.kind) ? static_cast<int>(if_nametoindex(port.target.c_str())) : 0;
}

}  // namespace

Verdict Decider::by_rule(RuleProto proto, RuleRole role, const Endpoint& address, bool owned) const {
  const RuleDecision decision = config_.rules.decide({proto, role, address, owned});
  if (decision.action == RuleAction::kBypass) return {RuleAction::kBypass, Reason::kNone, "", 0};
  // A built-in rule needs no words of its own: the reason says it.
  return {decision.action, reason_of(decision), decision.source == RuleSource::kUser ? decision.text : "", 0};
}

Verdict Decider::connect(RuleProto proto, const Endpoint& remote) const {
  const LiveNetwork::Reading now(network_);
  const Routes routes(*now);
  const auto port = routes.port_to(remote.address);
  Verdict verdict = by_rule(proto, RuleRole::kConnect, remote, routes.on_link(remote.address));
  if (verdict.action != RuleAction::kBypass) return verdict;
  if (!port) return {RuleAction::kKernel, Reason::kNoRoute, "", 0};
  // IPv6 on the wire is not built: the kernel has such a peer.
  if (!remote.address.is_v4()) return {RuleAction::kKernel, Reason::kAfUnsupported, "IPv6", 0};
  verdict.port = *port;
  return verdict;
}

Verdict Decider::listen(RuleProto proto, const Endpoint& local) const {
  const LiveNetwork::Reading now(network_);
  const Routes routes(*now);
  const auto owner = routes.owner_of(local.address);
  Verdict verdict = by_rule(proto, RuleRole::kListen, local, owner.has_value() || local.address.is_any());
  if (verdict.action != RuleAction::kBypass) return verdict;
  if (!local.address.is_v4() && !local.address.is_any())
    return {RuleAction::kKernel, Reason::kAfUnsupported, "IPv6", 0};
  if (!owner && !local.address.is_any()) return {RuleAction::kKernel, Reason::kAddressNotOurs, "", 0};
  if (!routes.any_port()) return {RuleAction::kKernel, Reason::kNoPortConfigured, "", 0};
  verdict.port = owner.value_or(0);
  return verdict;
}

int Decider::interface_of(std::size_t port) const {
  const LiveNetwork::Reading now(network_);
  return port < now->ports.size() ? number_of_interface(now->ports[port]) : 0;
}

bool Decider::is_port_on(int interface) const {
  const LiveNetwork::Reading now(network_);
  return interface != 0 && std::ranges::any_of(now->ports, [=](const PortConfig& port) {
           return number_of_interface(port) == interface;
         });
}

}  // namespace bypass::runtime
