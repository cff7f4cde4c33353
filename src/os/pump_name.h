// PumpName: the name of a socket that stands for a TCP connection which a process of ours pumps
// (runtime/family/pump/pump.h).
//
// The socket is one end of a pair of Unix sockets, bound to an abstract name (unix(7)). The name holds the connection's
// two addresses. So the kernel keeps them with the descriptor, through fork, exec and SCM_RIGHTS. A process that can
// pass a socket on could have connected it to any address in a network namespace of its own: so an end's own name is
// believed. A stranger can choose the name of the socket by which it connects to a listener: so the other end's name is
// believed only if are_ends() holds.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>

#include "stack/address.h"

namespace bypass::socket {

struct PumpName {
  std::uint8_t domain = 0;  // AF_INET or AF_INET6: the domain of the program's socket
  Endpoint local, remote;
  /// kPrograms, kPumps: the two ends of a connection. The relay's end (runtime/family/pump/relay.h) has no name while
  /// it connects, and gets kPumps, or kFailed, then. kListener: the program's end of a listener that a relay has.
  enum class End : std::uint8_t { kPrograms, kPumps, kFailed, kListener } end = End::kPrograms;
  std::uint64_t serial = 0;  // both ends of one pair have it, and no other names of the network namespace
  std::uint8_t error = 0;    // of kFailed: the errno of connect(2)
  bool operator==(const PumpName&) const = default;
};

/// The length of such an address.
inline constexpr socklen_t kPumpNameLength = 109;
/// Writes the name. Returns the length for bind().
socklen_t write_pump_name(const PumpName& name, sockaddr_un& out);
/// Reads a name that getsockname() has told, `length` bytes long; nullopt: the name is not ours.
[[nodiscard]] std::optional<PumpName> read_pump_name(const sockaddr_un& name, socklen_t length);
/// Whether the second name is that of the pump's end, where the first is the program's end.
[[nodiscard]] bool are_ends(const PumpName& programs, const PumpName& pumps);
/// The errno with which a connection has failed that the first name was made for, where the second one is that of the
/// other end; 0: it has not.
[[nodiscard]] int connect_error(const PumpName& programs, const PumpName& other);

}  // namespace bypass::socket
