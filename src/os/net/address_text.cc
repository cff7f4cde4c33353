#include "os/net/address_text.h"

#include <arpa/inet.h>

#include <charconv>
#include <cstdio>
#include <cstring>

namespace bypass::runtime {
namespace {

// inet_pton needs a terminated string; no address is longer than INET6_ADDRSTRLEN.
struct Terminated {
  char text[INET6_ADDRSTRLEN + 1] = {};
  bool fits;
  explicit Terminated(std::string_view from) : fits(!from.empty() && from.size() < INET6_ADDRSTRLEN) {
    if (fits) std::memcpy(text, from.data(), from.size());
  }
};

}  // namespace

std::optional<IpAddress> parse_ip(std::string_view text) {
  const Terminated address(text);
  if (!address.fits) return std::nullopt;
  in_addr v4{};
  if (inet_pton(AF_INET, address.text, &v4) == 1) return IpAddress::from_v4(be32_to_host(v4.s_addr));
  IpAddress v6;
  if (inet_pton(AF_INET6, address.text, v6.bytes.data()) == 1) return v6;
  return std::nullopt;
}

std::optional<Prefix> parse_prefix(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto address = parse_ip(text.substr(0, slash));
  if (!address) return std::nullopt;
  const unsigned longest = address->is_v4() ? 32 : 128;
  unsigned length = longest;
  if (slash != std::string_view::npos) {
    const char* const first = text.data() + slash + 1;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, length);
    if (error != std::errc{} || end != last || length > longest) return std::nullopt;
  }
  return Prefix{*address, static_cast<std::uint8_t>(length)};
}

std::optional<MacAddress> parse_mac(std::string_view text) {
  MacAddress mac;
  if (text.size() != 17) return std::nullopt;
  for (std::size_t i = 0; i < mac.bytes.size(); i++) {
    const char* const first = text.data() + i * 3;
    const auto [end, error] = std::from_chars(first, first + 2, mac.bytes[i], 16);
    if (error != std::errc{} || end != first + 2) return std::nullopt;
    if (i < 5 && first[2] != ':') return std::nullopt;
  }
  return mac;
}

AddressText to_text(const IpAddress& address) {
  AddressText out;
  if (address.is_v4()) {
    inet_ntop(AF_INET, address.bytes.data() + 12, out.text, sizeof out.text);
  } else {
    inet_ntop(AF_INET6, address.bytes.data(), out.text, sizeof out.text);
  }
  return out;
}

AddressText to_text(const Prefix& prefix) {
  AddressText out = to_text(prefix.address);
  const std::size_t used = std::strlen(out.text);
  std::snprintf(out.text + used, sizeof out.text - used, "/%u", prefix.length);
  return out;
}

AddressText to_text(const Endpoint& endpoint) {
  const AddressText address = to_text(endpoint.address);
  AddressText out;
  // An IPv6 text has at most 45 characters; the precision tells the compiler so.
  std::snprintf(out.text, sizeof out.text, endpoint.address.is_v4() ? "%.45s:%u" : "[%.45s]:%u", address.text,
                endpoint.port);
  return out;
}

AddressText to_text(const MacAddress& mac) {
  AddressText out;
  const auto& b = mac.bytes;
  std::snprintf(out.text, sizeof out.text, "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]);
  return out;
}

}  // namespace bypass::runtime
