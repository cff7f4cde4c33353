// Decider: kernel or bypass, for a stream at connect or listen and for each datagram's peer; with the reason.
//
// Looks at addresses, rules and routes only; the one that acts on "bypass" opens the ports. Any thread, also in a
// signal handler.
#pragma once

#include <optional>

#include "config/config.h"
#include "observe/reasons.h"
#include "runtime/routing/live_network.h"
#include "runtime/routing/routes.h"
#include "stack/address.h"

namespace bypass::runtime {

struct Verdict {
  RuleAction action = RuleAction::kKernel;
  observe::Reason reason = observe::Reason::kNone;  // when not bypass
  const char* detail = "";                          // the rule's words, or ""
  std::size_t port = 0;                             // when bypass, for a connect or a bound listener
};

class Decider {
 public:
  Decider(const Config& config, const LiveNetwork& network) : config_(config), network_(network) {}

  /// A stream's connect or a datagram's peer.
  [[nodiscard]] Verdict connect(RuleProto proto, const Endpoint& remote) const;
  /// A listener or a bound datagram socket; a wildcard address is bypass when any port is configured.
  [[nodiscard]] Verdict listen(RuleProto proto, const Endpoint& local) const;

 private:
  [[nodiscard]] Verdict by_rule(RuleProto proto, RuleRole role, const Endpoint& address, bool owned) const;

  const Config& config_;
  const LiveNetwork& network_;
};

}  // namespace bypass::runtime
