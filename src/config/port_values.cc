// The values of the lists of ports: the syntax of a port, an address, a gateway, a MAC and an MTU. Declared in
// config_draft.h.
#include <net/if.h>
#include <sys/un.h>

#include <algorithm>

#include "backends/wire_target.h"
#include "config/config_draft.h"
#include "config/port_kinds.h"
#include "config/settings.h"
#include "config/settings_text.h"
#include "os/net/address_text.h"

namespace bypass::runtime {

namespace {

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// 0000:03:00.0 or 03:00.0
bool is_pci_address(std::string_view text) {
  const auto dot = text.rfind('.');
  if (dot == std::string_view::npos || dot + 2 != text.size() || text[dot + 1] < '0' || text[dot + 1] > '7')
    return false;
  const auto parts = split(text.substr(0, dot), ':');
  if (parts.size() != 2 && parts.size() != 3) return false;
  if (parts.size() == 3 && (parts[0].size() != 4 || !is_hex(parts[0]))) return false;
  return std::all_of(parts.end() - 2, parts.end(), [](auto part) { return part.size() == 2 && is_hex(part); });
}

// The problem with the target of this kind; empty: no problem.
std::string target_problem(const KindInfo& kind, std::string_view target) {
  if (kind.target == Target::kNone) return target.empty() ? "" : "takes nothing behind it";
  if (target.empty()) return "names no target behind the colon";
  const WireTarget wire = kind.target == Target::kPath ? wire_target(target) : WireTarget{target, false, {}};
  if (wire.has_peer && wire.peer.empty()) return "names no user behind peer=";
  if (wire.path.empty()) return "has no path";
  if (kind.target == Target::kPath && wire.path.size() >= sizeof(sockaddr_un::sun_path))
    return "has a path longer than a socket's 107 bytes";
  // A program may change its folder before its first socket: a daemon is in / by then.
  if (kind.target == Target::kPath && target.front() != '/') return "has no absolute path";
  if (kind.target == Target::kInterface && (target.size() >= IFNAMSIZ || target.find_first_of("/ ") != target.npos))
    return "names no possible network interface (at most 15 characters, no slash, no space)";
  if (kind.target == Target::kPci && !is_pci_address(target)) return "is no PCI address such as 0000:03:00.0";
  return "";
}

bool parse_port_name(std::string_view text, PortName& out, std::string& problem) {
  const std::size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  const KindInfo* const kind = find_kind(word);
  if (kind == nullptr) {
    std::vector<std::string_view> known;
    for (const KindInfo& k : port_kinds()) known.push_back(k.kind);
    problem = "has the unknown kind " + quoted(word);
    if (const auto near = nearest(word, known); !near.empty()) problem += " (did you mean " + quoted(near) + "?)";
    return false;
  }
  out.kind = kind->kind;
  out.target = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const std::string wrong = target_problem(*kind, out.target);
  if (wrong.empty()) return true;
  problem = "has the port " + quoted(text) + ", which " + wrong;
  return false;
}

bool parse_address(std::string_view text, Prefix& out, std::string& problem) {
  const auto prefix = parse_prefix(text);
  if (!prefix) {
    problem = "has " + quoted(text) + ", which is no address with a prefix length";
    return false;
  }
  if (text.find('/') == std::string_view::npos) {
    problem = "has " + quoted(text) + " without the length of the link's prefix";
    return false;
  }
  const IpAddress& a = prefix->address;
  if (a.is_any() || a.is_multicast() || (a.is_v4() && (a.v4() >> 24 == 127 || a.v4() >> 28 == 0xf))) {
    problem = "has " + quoted(text) + ", which no host can own";
    return false;
  }
  if (a.is_v4() && prefix->length >= 1 && prefix->length <= 30) {
    const std::uint32_t host = a.v4() & (0xffffffffU >> prefix->length);
    if (host == 0 || host == (0xffffffffU >> prefix->length)) {
      problem =
          "has " + quoted(text) + ", which is the prefix's own " + (host == 0 ? "network" : "broadcast") + " address";
      return false;
    }
  }
  out = *prefix;
  return true;
}

// One router of each family for one port.
bool parse_gateway(std::string_view text, std::vector<IpAddress>& list, std::string& problem) {
  const auto address = parse_ip(text);
  if (!address || address->is_any() || address->is_multicast()) {
    problem = "has " + quoted(text) + ", which is no router's address";
    return false;
  }
  if (std::any_of(list.begin(), list.end(), [&](const IpAddress& a) { return a.is_v4() == address->is_v4(); })) {
    problem = "has two gateways of one family for one port";
    return false;
  }
  list.push_back(*address);
  return true;
}

// Calls `take` with each part of a list that is not empty, without surrounding blanks, until it returns false.
template <typename Take>
bool each_part(std::string_view list, char separator, Take take) {
  return std::ranges::all_of(split(list, separator), [&](std::string_view part) {
    const std::string_view trimmed = trim(part);
    return trimmed.empty() || take(trimmed);
  });
}

// The same for each port's entry, which may be empty, with its place in `out`.
template <typename T, typename Take>
bool each_port(std::string_view value, std::vector<T>& out, Take take) {
  out.clear();
  return std::ranges::all_of(split(value, ';'),
                             [&](std::string_view entry) { return take(trim(entry), out.emplace_back()); });
}

}  // namespace

bool parse_port_names(std::string_view value, std::vector<PortName>& out, std::string& problem) {
  out.clear();
  if (trim(value) == "none") return true;
  return each_part(value, ';', [&](auto part) {
    PortName name;
    if (!parse_port_name(part, name, problem)) return false;
    out.push_back(std::move(name));
    return true;
  });
}

bool parse_address_lists(std::string_view value, std::vector<std::vector<Prefix>>& out, std::string& problem) {
  return each_port(value, out, [&](auto entry, auto& list) {
    return each_part(entry, ',', [&](auto part) { return parse_address(part, list.emplace_back(), problem); });
  });
}

bool parse_gateways(std::string_view value, std::vector<std::vector<IpAddress>>& out, std::string& problem) {
  return each_port(value, out, [&](auto entry, auto& list) {
    return each_part(entry, ',', [&](auto part) { return parse_gateway(part, list, problem); });
  });
}

bool parse_macs(std::string_view value, std::vector<MacAddress>& out, std::string& problem) {
  return each_port(value, out, [&](auto entry, MacAddress& mac) {
    if (entry.empty()) return true;
    const auto parsed = parse_mac(entry);
    if (!parsed || parsed->is_multicast() || parsed->is_zero()) {
      problem = "has " + quoted(entry) + ", which is no unicast MAC address";
      return false;
    }
    mac = *parsed;
    return true;
  });
}

bool parse_mtus(std::string_view value, std::vector<std::uint32_t>& out, std::string& problem) {
  return each_port(value, out, [&](auto entry, std::uint32_t& mtu) {
    if (entry.empty()) return true;
    const auto parsed = parse_number(entry);
    if (!parsed || *parsed < kLeastMtu || *parsed > kMostMtu) {
      problem = "has " + quoted(entry) + ", which is no possible MTU";
      return false;
    }
    mtu = static_cast<std::uint32_t>(*parsed);
    return true;
  });
}

}  // namespace bypass::runtime
