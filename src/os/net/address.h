// Conversions between sockaddr and Endpoint. IPv4 is v4-mapped in an Endpoint. So an AF_INET6 socket with v4-mapped
// peers and an AF_INET socket differ only in how names are written back.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "stack/address.h"

namespace bypass::socket {

/// The endpoint that an AF_INET or AF_INET6 address names; nullopt for another family or too few bytes.
/// `::` is IpAddress{}, 0.0.0.0 is from_v4(0); both are "any".
[[nodiscard]] std::optional<Endpoint> endpoint_of(const sockaddr* address, socklen_t length);

/// Room for either family's address.
union SocketName {
  sockaddr base;
  sockaddr_storage storage;
};

/// Writes `endpoint` as a socket of `domain` names it (AF_INET6: ::ffff:a.b.c.d) and returns its length.
socklen_t write_name(const Endpoint& endpoint, int domain, SocketName& out);

/// Copies a name to the caller as the kernel does: cut to the available room, with the whole length reported. Both
/// pointers may be null together. A negative length gives the failure of kInvalid.
long copy_name(const Endpoint& endpoint, int domain, sockaddr* out, socklen_t* length);

/// connect() with AF_UNSPEC: dissolves the association.
[[nodiscard]] bool is_unspecified(const sockaddr* address, socklen_t length);

}  // namespace bypass::socket
