// Decider: decides between kernel and bypass, with the reason. A stream is decided at connect or listen, a datagram
// socket for each peer.
//
// It looks at addresses, rules and routes only. The caller that acts on "bypass" opens the ports. Any thread may call
// it, also in a signal handler.
#pragma once

#include <cstddef>
#include <optional>

#include "config/config.h"
#include "observe/reasons.h"
#include "runtime/routing/live_network.h"
#include "runtime/routing/routes.h"
#include "stack/address.h"

namespace bypass::runtime {

struct Verdict {
  RuleAction action = RuleAction::kKernel;
  observe::Reason reason = observe::Reason::kNone;  // for any verdict but bypass
  const char* detail = "";                          // the words of the rule; "" for a built-in one
  std::size_t port = 0;                             // for bypass: of a connect or of a bound listener
};

class Decider {
 public:
  Decider(const Config& config, const LiveNetwork& network) : config_(config), network_(network) {}

  /// Decides for a stream's connect or for a datagram's peer.
  [[nodiscard]] Verdict connect(RuleProto proto, const Endpoint& remote) const;
  /// The number of the port's interface, if the kernel has it, too; 0: it has not.
  [[nodiscard]] int interface_of(std::size_t port) const;
  /// Whether a port is on that interface.
  [[nodiscard]] bool is_port_on(int interface) const;
  /// Decides for a listener or a bound datagram socket. A wildcard address is bypass when any port is configured.
  [[nodiscard]] Verdict listen(RuleProto proto, const Endpoint& local) const;

 private:
  [[nodiscard]] Verdict by_rule(RuleProto proto, RuleRole role, const Endpoint& address, bool owned) const;

  const Config& config_;
  const LiveNetwork& network_;
};

}  // namespace bypass::runtime
