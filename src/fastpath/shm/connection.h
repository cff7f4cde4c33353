// Which kernel TCP connection a descriptor is an end of, and whether the kernel agrees.
#pragma once

#include <cstdint>

#include "fastpath/shm/refusal.h"
#include "stack/address.h"

namespace bypass::fastpath::shm {

/// One end of a connection, as the socket itself tells. IPv4 lies v4-mapped in it, whatever the socket's family.
struct ConnectionEnd {
  Endpoint local, remote;
  std::uint64_t network = 0;  // SO_NETNS_COOKIE: of its network namespace
};

/// What `fd` is an end of. kNotConnected: of no TCP connection.
Outcome<ConnectionEnd> connection_end(int fd);

/// Whether `fd` is the other end of `own`, whose endpoints differ: by what the socket says, and because the kernel's
/// table (sock_diag(7)) has the socket with this cookie, established, in that place.
[[nodiscard]] Refusal check_other_end(int fd, const ConnectionEnd& own);

/// Whether the other end of `fd`'s connection is a socket of this network namespace at all: for addresses that do not
/// tell by themselves.
[[nodiscard]] bool other_end_is_here(int fd);

}  // namespace bypass::fastpath::shm
