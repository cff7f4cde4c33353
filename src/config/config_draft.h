// Draft: a Config while it is parsed, with the lists that are joined into ports at the end. Private to the
// configuration's own files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace bypass::runtime {

struct PortName {
  std::string kind;
  std::string target;
};

struct Draft : Config {
  // One entry for each port, as the variables give them, separated by `;`. An empty entry sets nothing.
  std::vector<PortName> port_names;
  std::vector<PortName> soft_names;
  std::vector<std::vector<Prefix>> addresses;
  std::vector<std::vector<Prefix>> soft_addresses;
  std::vector<std::vector<IpAddress>> gateways;
  std::vector<MacAddress> macs;
  std::vector<std::uint32_t> mtus;
};

// In port_values.cc: parses one of the lists above. False: `problem` says what is wrong.
bool parse_port_names(std::string_view value, std::vector<PortName>& out, std::string& problem);
bool parse_address_lists(std::string_view value, std::vector<std::vector<Prefix>>& out, std::string& problem);
bool parse_gateways(std::string_view value, std::vector<std::vector<IpAddress>>& out, std::string& problem);
bool parse_macs(std::string_view value, std::vector<MacAddress>& out, std::string& problem);
bool parse_mtus(std::string_view value, std::vector<std::uint32_t>& out, std::string& problem);

/// Joins the lists into draft.ports and draft.soft. Lists that do not fit together become a problem.
void join_ports(Draft& draft);

inline std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

/// Adds a problem with the setting's name, value and origin as draft.values has them.
void add_problem(Draft& draft, std::string_view env, std::string text);

}  // namespace bypass::runtime
