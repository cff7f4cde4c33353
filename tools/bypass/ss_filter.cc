#include "ss_filter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "config/settings_text.h"
#include "os/net/address_text.h"

namespace bypass::tool {
namespace {

using observe::SocketRecord;
using observe::SocketState;
using Predicate = std::function<bool(const SocketRecord&)>;

constexpr std::uint32_t bit(SocketState state) {
  return 1U << static_cast<unsigned>(state);
}

constexpr std::uint32_t kAll = (bit(SocketState::kOpen) << 1) - 1;
constexpr std::uint32_t kListening = bit(SocketState::kListen) | bit(SocketState::kOpen);
constexpr std::uint32_t kConnected = kAll & ~kListening & ~bit(SocketState::kClosed);
constexpr std::uint32_t kBucket = bit(SocketState::kSynReceived) | bit(SocketState::kTimeWait);

// See STATE-FILTER in ss(8).
constexpr std::pair<std::string_view, std::uint32_t> kStates[] = {
    {"established", bit(SocketState::kEstablished)},
    {"estab", bit(SocketState::kEstablished)},
    {"syn-sent", bit(SocketState::kSynSent)},
    {"syn-recv", bit(SocketState::kSynReceived)},
    {"fin-wait-1", bit(SocketState::kFinWait1)},
    {"fin-wait-2", bit(SocketState::kFinWait2)},
    {"time-wait", bit(SocketState::kTimeWait)},
    {"closed", bit(SocketState::kClosed)},
    {"close-wait", bit(SocketState::kCloseWait)},
    {"last-ack", bit(SocketState::kLastAck)},
    {"listening", kListening},
    {"listen", bit(SocketState::kListen)},
    {"closing", bit(SocketState::kClosing)},
    {"unconnected", bit(SocketState::kOpen)},
    {"all", kAll},
    {"connected", kConnected},
    {"synchronized", kConnected & ~bit(SocketState::kSynSent)},
    {"bucket", kBucket},
    {"big", kAll & ~kBucket},
};

std::vector<std::string_view> state_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, states] : kStates) names.push_back(name);
  return names;
}

std::vector<std::string_view> path_names() {
  std::vector<std::string_view> names;
  for (std::uint8_t path = 0; path <= static_cast<std::uint8_t>(observe::SocketPath::kFramed); path++)
    names.emplace_back(observe::path_name(path));
  return names;
}

enum class Comparison : std::uint8_t { kEqual, kNotEqual, kLess, kGreater, kNotLess, kNotGreater };
constexpr std::pair<std::string_view, Comparison> kComparisons[] = {
    {"=", Comparison::kEqual},       {"==", Comparison::kEqual},      {"eq", Comparison::kEqual},
    {"!=", Comparison::kNotEqual},   {"ne", Comparison::kNotEqual},   {"neq", Comparison::kNotEqual},
    {"<", Comparison::kLess},        {"lt", Comparison::kLess},       {">", Comparison::kGreater},
    {"gt", Comparison::kGreater},    {">=", Comparison::kNotLess},    {"ge", Comparison::kNotLess},
    {"geq", Comparison::kNotLess},   {"<=", Comparison::kNotGreater}, {"le", Comparison::kNotGreater},
    {"leq", Comparison::kNotGreater}};

bool compare(std::uint16_t a, Comparison how, std::uint16_t b) {
  switch (how) {
    case Comparison::kEqual:
      return a == b;
    case Comparison::kNotEqual:
      return a != b;
    case Comparison::kLess:
      return a < b;
    case Comparison::kGreater:
      return a > b;
    case Comparison::kNotLess:
      return a >= b;
    case Comparison::kNotGreater:
      return a <= b;
  }
  return false;
}

template <typename Table>
auto look_up(const Table& table, std::string_view word) -> std::optional<decltype(std::begin(table)->second)> {
  for (const auto& [name, value] : table)
    if (name == word) return value;
  return std::nullopt;
}

std::optional<std::uint16_t> port_number(std::string_view text) {
  if (const auto number = runtime::parse_number(text); number && *number >= 0 && *number <= 65535)
    return static_cast<std::uint16_t>(*number);
  const servent* service = getservbyname(std::string(text).c_str(), nullptr);
  if (service == nullptr) return std::nullopt;
  return ntohs(static_cast<std::uint16_t>(service->s_port));
}

// Splits into words. ( ) and ! are words of their own wherever they stand.
std::vector<std::string> tokens_of(const std::vector<std::string>& words) {
  std::vector<std::string> tokens;
  bool open = false;  // the last token may still grow
  for (const std::string& word : words) {
    open = false;
    for (std::size_t i = 0; i < word.size(); i++) {
      const char c = word[i];
      const bool negation = c == '!' && (i + 1 == word.size() || word[i + 1] != '=');
      if (c == ' ' || c == '\t') {
        open = false;
      } else if (c == '(' || c == ')' || negation) {
        tokens.emplace_back(1, c);
        open = false;
      } else {
        if (!open) tokens.emplace_back();
        tokens.back() += c;
        open = true;
      }
    }
  }
  return tokens;
}

class Parser {
 public:
  Parser(std::vector<std::string> tokens, std::string& problem) : tokens_(std::move(tokens)), problem_(problem) {}

  [[nodiscard]] bool at_end() const { return at_ == tokens_.size(); }
  [[nodiscard]] std::string_view peek() const { return at_end() ? std::string_view{} : tokens_[at_]; }
  bool take(std::string_view word) {
    if (at_end() || tokens_[at_] != word) return false;
    at_++;
    return true;
  }
  std::string_view take_any() { return at_end() ? std::string_view{} : tokens_[at_++]; }

  // expression: term { or term };  term: factor { [and] factor };  factor: not factor | ( expression ) | predicate
  std::optional<Predicate> expression() {
    auto left = term();
    while (left && (take("or") || take("|") || take("||"))) {
      auto right = term();
      if (!right) return right;
      left = [a = *left, b = *right](const SocketRecord& s) { return a(s) || b(s); };
    }
    return left;
  }
  std::optional<Predicate> fail(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
    return std::nullopt;
  }

 private:
  [[nodiscard]] bool factor_follows() const {
    const std::string_view word = peek();
    return !word.empty() && word != ")" && word != "or" && word != "|" && word != "||";
  }
  std::optional<Predicate> term() {
    auto left = factor();
    while (left && factor_follows()) {
      (void)(take("and") || take("&") || take("&&"));
      auto right = factor();
      if (!right) return right;
      left = [a = *left, b = *right](const SocketRecord& s) { return a(s) && b(s); };
    }
    return left;
  }
  std::optional<Predicate> factor() {
    if (take("not") || take("!")) {
      auto inner = factor();
      if (!inner) return inner;
      return [a = *inner](const SocketRecord& s) { return !a(s); };
    }
    if (take("(")) {
      auto inner = expression();
      if (inner && !take(")")) return fail("a ) is missing");
      return inner;
    }
    const std::string name(take_any());
    if (name == "sport" || name == "dport") return port(name == "sport");
    if (name == "src" || name == "dst") return address(name == "src");
    if (name == "path") return path();
    return fail(
        name.empty()
            ? "the expression ends too early"
            : fmt::format("'{}' is not understood; accepted are sport, dport, src, dst, path, not, ( and )", name));
  }
  std::optional<Predicate> port(bool local) {
    const auto how = look_up(kComparisons, peek());
    if (how) take_any();
    std::string_view text = take_any();
    if (text.starts_with(':')) text.remove_prefix(1);
    if (text.empty())
      return fail(fmt::format("a port is missing: accepted behind {} is :80, 80 or a service's name",
                              local ? "sport" : "dport"));
    const auto number = port_number(text);
    if (!number) return fail(fmt::format("'{}' is no port: accepted is :80, 80 or a service's name", text));
    return [=, how = how.value_or(Comparison::kEqual)](const SocketRecord& s) {
      return compare(local ? s.local_port : s.remote_port, how, *number);
    };
  }
  std::optional<Predicate> path() {
    const std::optional<Comparison> how = equality("paths");
    if (!how) return std::nullopt;
    const std::string_view text = take_any();
    const auto names = path_names();
    const auto at = std::find(names.begin(), names.end(), text);
    if (at == names.end()) return fail(fmt::format("'{}' is no path; accepted are {}", text, fmt::join(names, ", ")));
    return [how = *how, path = static_cast<std::uint8_t>(at - names.begin())](const SocketRecord& s) {
      return compare(s.path, how, path);
    };
  }
  // = or !=, or nothing, which means =
  std::optional<Comparison> equality(const char* what) {
    const auto how = look_up(kComparisons, peek());
    if (how) take_any();
    if (how.value_or(Comparison::kEqual) <= Comparison::kNotEqual) return how.value_or(Comparison::kEqual);
    fail(fmt::format("{} are compared by = and != alone", what));
    return std::nullopt;
  }
  // ADDRESS[/LENGTH][:PORT], *:PORT
  std::optional<Predicate> address(bool local) {
    const std::optional<Comparison> how = equality("addresses");
    if (!how) return std::nullopt;
    const std::string text(take_any());
    const std::size_t colon = text.rfind(':');
    std::optional<std::uint16_t> number;
    if (colon != std::string::npos && text.substr(colon + 1) != "*") {
      number = port_number(std::string_view(text).substr(colon + 1));
      if (!number) return fail(fmt::format("'{}' has no port behind its colon", text));
    }
    std::string host = text.substr(0, colon);
    std::optional<Prefix> prefix;
    if (host != "*" && !host.empty()) {
      if (host.find('/') == std::string::npos) host += "/32";
      prefix = runtime::parse_prefix(host);
      if (!prefix) return fail(fmt::format("'{}' is no address", text));
    }
    const bool wanted = *how == Comparison::kEqual;
    return [=](const SocketRecord& s) {
      const bool in = !prefix || prefix->contains(local ? s.local_address : s.remote_address);
      const bool at = !number || (local ? s.local_port : s.remote_port) == *number;
      return (in && at) == wanted;
    };
  }

  std::vector<std::string> tokens_;
  std::string& problem_;
  std::size_t at_ = 0;
};

}  // namespace

SocketState shown_state(const SocketRecord& socket) {
  const auto state = static_cast<SocketState>(socket.state);
  if (socket.protocol != IPPROTO_UDP) return state;
  return socket.remote_port != 0 ? SocketState::kEstablished : SocketState::kOpen;
}

bool SocketFilter::parse(const std::vector<std::string>& words, Default states, std::string& problem) {
  Parser parser(tokens_of(words), problem);
  std::uint32_t named = 0, excluded = 0;
  for (;;) {
    const bool state = parser.take("state");
    if (!state && !parser.take("exclude")) break;
    const std::string name(parser.take_any());
    const auto mask = look_up(kStates, name);
    if (!mask) {
      problem = fmt::format("'{}' is no state; accepted are {}", name, fmt::join(state_names(), ", "));
      return false;
    }
    (state ? named : excluded) |= *mask;
  }
  const std::uint32_t connected = kConnected & ~kBucket;
  const std::uint32_t base = states == Default::kAll ? kAll : states == Default::kListening ? kListening : connected;
  states_ = (named != 0 ? named : excluded != 0 ? kAll : base) & ~excluded;
  if (parser.at_end()) return true;
  const auto expression = parser.expression();
  if (expression && !parser.at_end()) parser.fail(fmt::format("'{}' was not expected there", parser.peek()));
  if (!problem.empty()) return false;
  expression_ = *expression;
  return true;
}

bool SocketFilter::matches(const SocketRecord& socket) const {
  return (states_ & bit(shown_state(socket))) != 0 && (!expression_ || expression_(socket));
}

bool SocketFilter::single_state() const {
  return (states_ & (states_ - 1)) == 0;
}

}  // namespace bypass::tool
