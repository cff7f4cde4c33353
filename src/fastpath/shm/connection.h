// Which kernel TCP connection a descriptor is an end of, and whether the kernel agrees.
#pragma once

#include <cstdint>

#include "fastpath/shm/refusal.h"
#include "stack/address.h"

namespace bypass::fastpath::shm {

/// One end of a connection, as the socket itself tells. IPv4 lies v4-mapped in it, whatever the socket's family.
struct ConnectionEnd {
  Endpoint local, remote;
  std::uint64_t network = 0;    // SO_NETNS_COOKIE: of its network namespace
  std::uint64_t cookie = 0;     // SO_COOKIE: of the socket, never used twice
  std::uint32_t interface = 0;  // SO_BINDTOIFINDEX; 0: any

  [[nodiscard]] bool is_other_end_of(const ConnectionEnd& other) const {
    return local == other.remote && remote == other.local && network == other.network && cookie != other.cookie;
  }
};

/// What `fd` is an end of. kNotConnected: of no TCP connection.
Outcome<ConnectionEnd> connection_end(int fd);

/// Whether `fd` is the other end of `own`: by what the socket says, and because the kernel's table (sock_diag(7)) has
/// the socket with this cookie, established, in that place.
[[nodiscard]] Refusal check_other_end(int fd, const ConnectionEnd& own);

/// Whether the other end is a socket of this network namespace at all: for addresses that do not tell by themselves.
[[nodiscard]] bool other_end_is_here(const ConnectionEnd& own);

}  // namespace bypass::fastpath::shm
