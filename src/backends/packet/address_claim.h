// AddressClaim: that an interface's address is this process's, for as long as it lives.
//
// Packet sockets let any number of processes answer for one address, each with resets for the others' connections. So
// each has an abstract Unix socket of the interface's and the address's name, which the network namespace has once; it
// goes with the process, also by SIGKILL. Such a name is anybody's to take: one that belongs to another user (but root)
// is no claim.
#pragma once

#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/packet/descriptor.h"

namespace bypass::packet {

class AddressClaim {
 public:
  /// All of `spec.addresses`, on the interface `spec.target`. False: another process has one, and `problem` says which.
  bool take(const PortSpec& spec, std::string& problem);

 private:
  std::vector<Descriptor> sockets_;
};

}  // namespace bypass::packet
