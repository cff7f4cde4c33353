// Claim: says that an address or a flow at an interface belongs to this process, for as long as the process lives.
//
// With packet sockets, any number of processes can have the same address or flow, and all would answer. So each process
// binds an abstract Unix socket, whose name exists once in a network namespace. The name goes with the process, also
// after SIGKILL. Anybody can take such a name, so one that another user has (except root) is no claim. The socket is
// only bound: nobody can connect to it.
#pragma once

#include <sys/types.h>

#include <string>

#include "backends/packet/descriptor.h"
#include "stack/address.h"

namespace bypass::packet {

class Claim {
 public:
  /// False: another process has the claim; holder() says which. A claim whose socket cannot be made stops nobody.
  bool take(const std::string& interface, const std::string& what);
  /// Such as " (pid 17)"; empty when the process cannot be seen from here.
  [[nodiscard]] std::string holder() const;

 private:
  Descriptor socket_;
  pid_t holder_ = 0;
};

/// An address as text, as claims and messages write it.
std::string text_of(const IpAddress& address);

}  // namespace bypass::packet
