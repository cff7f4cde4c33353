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

/// That the socket is bound to (SO_BINDTOIFINDEX); 0: any.
[[nodiscard]] std::uint32_t interface_of(int fd);

/// What a process says of its end.
struct ClaimedEnd {
  std::int32_t pid = 0;      // as the kernel names the process; 0: it cannot be named here
  std::int32_t number = -1;  // of the socket among its descriptors
  std::uint32_t interface = 0;
};
/// Whether that is the other end of `own`, whose endpoints differ: the kernel's table (sock_diag(7)) has a socket in
/// that place, established, and /proc/PID/fd the same one under that number. To look there is what ptrace(2) asks for:
/// a process with rights that this one lacks is refused (kOtherRights), as this one is by the other.
[[nodiscard]] Refusal check_other_end(const ClaimedEnd& claimed, const ConnectionEnd& own);

/// Whether the other end of `fd`'s connection is a socket of this network namespace at all: for addresses that do not
/// tell by themselves.
[[nodiscard]] bool other_end_is_here(int fd);

}  // namespace bypass::fastpath::shm
