#include "config/rules.h"

#include <fnmatch.h>

#include <charconv>

#include "config/settings_text.h"
#include "os/net/address_text.h"

namespace bypass::runtime {
namespace {

constexpr std::uint16_t kDnsPort = 53;

constexpr std::string_view kForm =
    "ACTION [tcp|udp|*] [connect|listen|*] [ADDRESS[/LENGTH]|*][:PORT[-PORT]] [program=NAME] "
    "with the actions bypass, kernel and fail, or rdma ADDRESS[/LENGTH] [program=NAME]";

template <typename T>
struct Word {
  std::string_view word;
  T value;
};
constexpr Word<RuleAction> kActions[] = {
    {"bypass", RuleAction::kBypass},
    {"kernel", RuleAction::kKernel},
    {"fail", RuleAction::kFail},
    {"rdma", RuleAction::kRdma},
};
constexpr Word<RuleProto> kProtos[] = {{"tcp", RuleProto::kTcp}, {"udp", RuleProto::kUdp}, {"*", RuleProto::kAny}};
constexpr Word<RuleRole> kRoles[] = {
    {"connect", RuleRole::kConnect}, {"listen", RuleRole::kListen}, {"*", RuleRole::kAny}};

template <typename T, std::size_t n>
bool find_word(const Word<T> (&words)[n], std::string_view word, T& value) {
  for (const auto& entry : words) {
    if (entry.word != word) continue;
    value = entry.value;
    return true;
  }
  return false;
}

bool parse_port(std::string_view text, std::uint16_t& port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse_ports(std::string_view text, Rule& rule) {
  if (text == "*") return true;
  const std::size_t dash = text.find('-');
  if (!parse_port(text.substr(0, dash), rule.port_low)) return false;
  if (dash == std::string_view::npos) {
    rule.port_high = rule.port_low;
    return true;
  }
  return parse_port(text.substr(dash + 1), rule.port_high) && rule.port_low <= rule.port_high;
}

// Where the port part begins: after "]" in [v6]:port, after the only colon in v4:port; a bare v6 has no port.
std::size_t port_colon(std::string_view text) {
  const std::size_t last = text.rfind(':');
  if (text.front() == '[') {
    const std::size_t bracket = text.find(']');
    const bool follows = bracket != std::string_view::npos && last == bracket + 1;
    return follows ? last : std::string_view::npos;
  }
  return last == text.find(':') ? last : std::string_view::npos;
}

// 10.9.0.0/16:6379, [fd09::/64]:80-90, fd09::/64, *:53, :53, *
bool parse_address(std::string_view text, Rule& rule) {
  const std::size_t colon = port_colon(text);
  if (colon != std::string_view::npos && !parse_ports(text.substr(colon + 1), rule)) return false;
  std::string_view address = text.substr(0, colon);
  if (address.empty() || address == "*") return true;
  if (address.front() == '[' && address.back() == ']') address = address.substr(1, address.size() - 2);
  rule.prefix = parse_prefix(address);
  return rule.prefix.has_value();
}

// A peer is asked once for all its connections, so a rule for peers can have no ports and no role.
std::string beside_peers(const Rule& rule) {
  if (rule.proto == RuleProto::kTcp) return "'tcp' does not fit: only an address, and program=NAME, can follow";
  if (rule.proto == RuleProto::kUdp) return "'udp' does not fit: streams alone have such connections";
  if (rule.role != RuleRole::kAny)
    return "'connect' or 'listen' does not fit: it does not matter which end began a connection";
  if (rule.port_low != 0 || rule.port_high != 65535)
    return "a port does not fit: a peer is asked for all of its connections";
  return rule.prefix.has_value() ? "" : "no peers are named";
}

// After the action, words fill proto, role and address in this order. A word that does not fit a place leaves that
// place at "any", and `*` fills the next place with "any".
bool parse_words(std::vector<std::string_view> words, Rule& rule, std::string& problem) {
  if (!find_word(kActions, words[0], rule.action)) {
    problem = "'" + std::string(words[0]) + "' is no action";
    if (const auto near = nearest(words[0], {"bypass", "kernel", "fail", "rdma"}); !near.empty())
      problem += " (did you mean '" + std::string(near) + "'?)";
    return false;
  }
  std::size_t next = 1;
  if (words.size() > next && words.back().starts_with("program=")) {
    rule.program = words.back().substr(8);
    if (rule.program.empty()) {
      problem = "'program=' names no program (without the word a rule is every program's)";
      return false;
    }
    words.pop_back();
  }
  if (next < words.size() && find_word(kProtos, words[next], rule.proto)) next++;
  if (next < words.size() && find_word(kRoles, words[next], rule.role)) next++;
  if (next < words.size() && parse_address(words[next], rule)) next++;
  if (next != words.size()) {
    problem = "'" + std::string(words[next]) + "' does not fit there";
    return false;
  }
  if (rule.action == RuleAction::kRdma) problem = beside_peers(rule);
  return problem.empty();
}

bool matches(const Rule& rule, const RuleQuery& query) {
  if (rule.action == RuleAction::kRdma) return false;
  if (rule.proto != RuleProto::kAny && rule.proto != query.proto) return false;
  if (rule.role != RuleRole::kAny && rule.role != query.role) return false;
  if (rule.prefix && !rule.prefix->contains(query.address.address)) return false;
  return query.address.port >= rule.port_low && query.address.port <= rule.port_high;
}

}  // namespace

bool RuleSet::add(std::string_view text, std::string& problem) {
  for (const std::string_view part : split(text, ';')) {
    const std::string_view trimmed = trim(part);
    if (trimmed.empty()) continue;
    Rule rule;
    rule.text = trimmed;
    std::string why;
    if (!parse_words(split_words(trimmed), rule, why)) {
      problem = "in the rule '" + rule.text + "' " + why + "; accepted is " + std::string(kForm);
      return false;
    }
    rules_.push_back(std::move(rule));
  }
  return true;
}

void RuleSet::keep_program(const char* name) {
  std::erase_if(rules_, [name](const Rule& rule) {
    return !rule.program.empty() && fnmatch(rule.program.c_str(), name, 0) != 0;
  });
}

std::vector<Prefix> RuleSet::rdma_peers() const {
  std::vector<Prefix> peers;
  for (const Rule& rule : rules_)
    if (rule.action == RuleAction::kRdma) peers.push_back(*rule.prefix);
  return peers;
}

RuleDecision RuleSet::decide(const RuleQuery& query) const {
  for (const Rule& rule : rules_)
    if (matches(rule, query)) return {rule.action, RuleSource::kUser, rule.text.c_str()};
  if (!query.port_owns_address) {
    if (query.address.address.is_loopback())
      return {RuleAction::kKernel, RuleSource::kLoopback, "loopback stays with the kernel"};
    if (query.role == RuleRole::kConnect && query.address.port == kDnsPort)
      return {RuleAction::kKernel, RuleSource::kDns, "DNS stays with the kernel"};
  }
  return {RuleAction::kBypass, RuleSource::kDefault, "no rule speaks against it"};
}

}  // namespace bypass::runtime
