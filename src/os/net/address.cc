#include "os/net/address.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "os/errno_map.h"

namespace bypass::socket {

namespace {
/// The shortest AF_INET6 address that Linux accepts: without the scope (SIN6_LEN_RFC2133).
constexpr socklen_t kShortestV6 = 24;
}  // namespace

std::optional<Endpoint> endpoint_of(const sockaddr* address, socklen_t length) {
  if (address == nullptr || length < sizeof(sa_family_t)) return std::nullopt;
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof v4);
    return Endpoint{IpAddress::from_v4(be32_to_host(v4.sin_addr.s_addr)), be16_to_host(v4.sin_port)};
  }
  if (address->sa_family == AF_INET6 && length >= kShortestV6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address, std::min<std::size_t>(length, sizeof v6));
    Endpoint endpoint;
    std::memcpy(endpoint.address.bytes.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
    endpoint.port = be16_to_host(v6.sin6_port);
    return endpoint;
  }
  return std::nullopt;
}

socklen_t write_name(const Endpoint& endpoint, int domain, SocketName& out) {
  std::memset(&out, 0, sizeof(sockaddr_in6));
  if (domain == AF_INET6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = host_to_be16(endpoint.port);
    const bool any = endpoint.address.is_any();
    if (!any) std::memcpy(&v6.sin6_addr, endpoint.address.bytes.data(), sizeof v6.sin6_addr);
    std::memcpy(&out, &v6, sizeof v6);
    return sizeof v6;
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = host_to_be16(endpoint.port);
  v4.sin_addr.s_addr = host_to_be32(endpoint.address.v4());
  std::memcpy(&out, &v4, sizeof v4);
  return sizeof v4;
}

long copy_name(const Endpoint& endpoint, int domain, sockaddr* out, socklen_t* length) {
  if (out == nullptr) return 0;
  if (length == nullptr) return failure(Refusal::kBadPointer);
  if (static_cast<int>(*length) < 0) return failure(Error::kInvalid);
  SocketName name;
  const socklen_t whole = write_name(endpoint, domain, name);
  std::memcpy(out, &name, std::min(*length, whole));
  *length = whole;
  return 0;
}

bool is_unspecified(const sockaddr* address, socklen_t length) {
  return address != nullptr && length >= sizeof(sa_family_t) && address->sa_family == AF_UNSPEC;
}

}  // namespace bypass::socket
