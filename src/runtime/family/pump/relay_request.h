// RelayRequest: what a process that has given rights up asks of its relay (relay.h), and the answer.
//
// Each request is one record of a SOCK_SEQPACKET socket, with two descriptors (SCM_RIGHTS): first the socket of the
// kernel's that the process would bind, listen or connect, bound to the local port that it wants, if it wants one. The
// kernel has let it bind that, so the relay asks no further whether it may. Second, a SOCK_SEQPACKET socket for the
// answer. The answer carries the program's end, if there is no error.
#pragma once

#include <array>
#include <cstdint>

namespace bypass::runtime {

struct RelayRequest {
  /// kLook: the answer, EINVAL, comes when the relay has ended what the asker had closed before.
  enum Kind : std::uint32_t { kListen = 1, kConnect = 2, kLook = 3 };
  std::uint32_t kind = 0;
  std::uint32_t backlog = 0;                         // of kListen
  std::array<std::uint8_t, 16> remote_address = {};  // of kConnect, as in IpAddress
  std::uint16_t remote_port = 0;
  std::uint16_t unused = 0;
};
static_assert(sizeof(RelayRequest) == 28);

struct RelayAnswer {
  std::int32_t error = 0;  // an errno; 0: it is done
};

}  // namespace bypass::runtime
