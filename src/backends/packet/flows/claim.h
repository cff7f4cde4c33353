// Claim: that something of an interface's, an address or a flow, is this process's, for as long as it lives.
//
// Packet sockets let any number of processes have the same, and answer for it. So each has an abstract Unix socket of
// that name, which the network namespace has once; it goes with the process, also by SIGKILL. Such a name is anybody's
// to take: one that belongs to another user (but root) is no claim. It is bound and no more: nobody can connect to it.
#pragma once

#include <sys/types.h>

#include <string>

#include "backends/packet/descriptor.h"
#include "stack/address.h"

namespace bypass::packet {

class Claim {
 public:
  /// False: another process has it; holder() says which. One that cannot be made holds nobody up.
  bool take(const std::string& interface, const std::string& what);
  /// " (pid 17)"; empty when it is not to be seen from here.
  [[nodiscard]] std::string holder() const;

 private:
  Descriptor socket_;
  pid_t holder_ = 0;
};

/// An address as claims and messages name it.
std::string text_of(const IpAddress& address);

}  // namespace bypass::packet
