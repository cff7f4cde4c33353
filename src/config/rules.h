// Rules: which sockets use the bypass, which stay with the kernel, and why.
//
// A rule is `ACTION [PROTO] [ROLE] [ADDRESS[/LENGTH]][:PORT[-PORT]] [program=NAME]`, with `*` for "any". Rules are
// separated by `;`, and the first match wins. After the user's rules come the built-in ones. Loopback stays with the
// kernel unless the address is a port's own. DNS stays with the kernel unless a port's prefix holds the address.
// Everything else may be bypassed; the route table decides later whether a port routes there.
//
// `rdma ADDRESS[/LENGTH] [program=NAME]` decides nothing about a socket. It names peers behind a router. These are
// asked for an RDMA connection, or for shared memory, as the port's own neighbours are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stack/address.h"

namespace bypass::runtime {

enum class RuleAction : std::uint8_t { kBypass, kKernel, kFail, kRdma };
enum class RuleProto : std::uint8_t { kAny, kTcp, kUdp };
/// For a stream: connect() and bind()+listen(). For a datagram socket: the direction of its first use.
enum class RuleRole : std::uint8_t { kAny, kConnect, kListen };

struct Rule {
  RuleAction action = RuleAction::kBypass;
  RuleProto proto = RuleProto::kAny;
  RuleRole role = RuleRole::kAny;
  std::optional<Prefix> prefix;  // none: any address
  std::uint16_t port_low = 0;
  std::uint16_t port_high = 65535;
  std::string program;  // name of the executable, with shell wildcards; empty: any program
  std::string text;     // as the user wrote it
};

struct RuleQuery {
  RuleProto proto = RuleProto::kTcp;
  RuleRole role = RuleRole::kConnect;
  Endpoint address;                // the peer's for connect, the local address for listen
  bool port_owns_address = false;  // it lies in the prefix of one of the bypass's ports (Routes::on_link)
};

enum class RuleSource : std::uint8_t { kUser, kLoopback, kDns, kDefault };

struct RuleDecision {
  RuleAction action = RuleAction::kBypass;
  RuleSource source = RuleSource::kDefault;
  const char* text = "";  // the text of the rule; it lives as long as the RuleSet
};

class RuleSet {
 public:
  /// Parses `text` and appends; false: `problem` says what is wrong with which rule.
  bool add(std::string_view text, std::string& problem);

  /// Drops the rules of other programs, so that decide() need not compare names.
  void keep_program(const char* name);

  [[nodiscard]] RuleDecision decide(const RuleQuery& query) const;

  /// The peers that the rules of kRdma name.
  [[nodiscard]] std::vector<Prefix> rdma_peers() const;

  [[nodiscard]] const std::vector<Rule>& rules() const { return rules_; }

 private:
  std::vector<Rule> rules_;
};

}  // namespace bypass::runtime
