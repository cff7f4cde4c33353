// Addresses as text, in both directions. Formatting writes into a value on the stack and allocates nothing, so that the
// log and the crash report may use it in a signal handler.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "stack/address.h"

namespace bypass::runtime {

/// 10.9.0.1 or fd09::1. No port, no prefix length, no zone, no surrounding space.
std::optional<IpAddress> parse_ip(std::string_view text);

/// 10.9.0.0/16 or fd09::/64; without a length the whole address counts (32, 128).
std::optional<Prefix> parse_prefix(std::string_view text);

/// 02:00:00:00:00:01, in hexadecimal, separated by colons.
std::optional<MacAddress> parse_mac(std::string_view text);

/// Text of at most 63 bytes, zero-terminated.
struct AddressText {
  char text[64] = {};
  [[nodiscard]] const char* c_str() const { return text; }
  [[nodiscard]] std::string_view view() const { return text; }
};

AddressText to_text(const IpAddress& address);  // 10.9.0.1, fd09::1
AddressText to_text(const Prefix& prefix);      // 10.9.0.0/16
AddressText to_text(const Endpoint& endpoint);  // 10.9.0.1:80, [fd09::1]:80
AddressText to_text(const MacAddress& mac);     // 02:00:00:00:00:01

}  // namespace bypass::runtime
