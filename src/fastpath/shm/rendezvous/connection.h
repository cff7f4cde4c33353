// Finds the kernel TCP connection that a descriptor is an end of, and checks a claim about its other end with the
// kernel.
// Tests: tests/fastpath/shm/rendezvous_test.cc.
#pragma once

#include <cstdint>

#include "fastpath/shm/refusal.h"
#include "stack/address.h"

namespace bypass::fastpath::shm {

/// One end of a connection, as the socket itself reports it. IPv4 addresses are v4-mapped, whatever the socket's
/// family.
struct ConnectionEnd {
  Endpoint local, remote;
  std::uint64_t network = 0;  // SO_NETNS_COOKIE of its network namespace
};

/// The connection that `fd` is an end of. kNotConnected: `fd` is no end of a TCP connection.
Outcome<ConnectionEnd> connection_end(int fd);

/// The interface that the socket is bound to (SO_BINDTOIFINDEX); 0: none in particular.
[[nodiscard]] std::uint32_t interface_of(int fd);

/// What a process claims about its end.
struct ClaimedEnd {
  std::int32_t pid = 0;      // as the kernel names the process; 0: it has no name here
  std::int32_t number = -1;  // the socket's number among the process's descriptors
  std::uint32_t interface = 0;
};
/// Checks whether `claimed` is the other end of `own`, whose endpoints differ. The kernel's table (sock_diag(7)) must
/// have an established socket in that place, and /proc/PID/fd the same socket under that number. To look there needs
/// the rights of ptrace(2). So a process with rights that this one lacks is refused (kOtherRights), and so is this
/// process by that one.
[[nodiscard]] Refusal check_other_end(const ClaimedEnd& claimed, const ConnectionEnd& own);

/// Whether the other end of `fd`'s connection is a socket of this network namespace at all. Used when the addresses
/// alone do not show that.
[[nodiscard]] bool other_end_is_here(int fd);

}  // namespace bypass::fastpath::shm
