// PumpName: what a socket is called that stands for a TCP connection which a process of ours pumps
// (runtime/family/pump.h).
//
// It is one end of a pair of Unix sockets, and bound to an abstract name (unix(7)) that says whose names the connection
// has. So the kernel keeps them with the descriptor, through fork, exec and SCM_RIGHTS. Nothing is allowed by such a
// name: whoever can hand a socket on could have connected it to any address in a namespace of its own.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>

#include "stack/address.h"

namespace bypass::socket {

struct PumpName {
  std::uint8_t domain = 0;  // AF_INET or AF_INET6: of the program's socket
  Endpoint local, remote;
  bool operator==(const PumpName&) const = default;
};

/// How long such an address is.
inline constexpr socklen_t kPumpNameLength = 105;
/// Writes it; `serial` is a number that no other such name of the network namespace has. The length for bind().
socklen_t write_pump_name(const PumpName& name, std::uint64_t serial, sockaddr_un& out);
/// Of a name that getsockname() has told, `length` bytes long; nullopt: it is none of ours.
[[nodiscard]] std::optional<PumpName> read_pump_name(const sockaddr_un& name, socklen_t length);

}  // namespace bypass::socket
