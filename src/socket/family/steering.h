// Steering: what a device that lets the kernel keep its interface (PortCaps::steering) needs beside the frames.
//
// It is told which flows are ours. And since the kernel has the same addresses, no number may be used by both: a
// connection's number is bound by its kernel descriptor, and kept after close() until nothing is left of the
// connection.
#pragma once

#include <cstdint>

#include "socket/shard.h"
#include "stack/address.h"
#include "stack/context.h"
#include "stack/stack.h"

namespace bypass::socket {

struct Socket;

/// Tells the devices what the stack has noted since (FlowLog). By the ports' owner, lock held.
void steer_noted_flows(Stack& stack, Context& context);

/// The kernel has other addresses or routes on a port's interface than before: the stack follows, and the device is
/// told of the flows at the addresses that have come and gone. By the ports' owner, lock held. An error leaves all as
/// it was.
Result<bool> change_interface(Stack& stack, Context& context, std::uint16_t port, const InterfaceConfig& interface);

/// The end that a connection to `remote` shall have: where that goes out by a port that steers, one that the kernel has
/// bound to the number. Else `local` as it is. kAddressNotAvailable: there is none left (connect(2)).
Result<Endpoint> reserve_endpoint(Guard& guard, const Socket& socket, int fd, const Endpoint& local,
                                  const Endpoint& remote);

/// A connection's number while its descriptor is being closed: made before the connection is given up, asked to keep
/// the number afterwards. Lock held.
class NumberKeeper {
 public:
  explicit NumberKeeper(const Socket& socket);
  void keep(int fd) const;

 private:
  bool steered_ = false;
  Endpoint local_, remote_;
};

/// Gives numbers back whose connections have ended. Lock held.
void give_numbers_back();
/// Whether this process has any. Without the lock.
bool keeps_numbers();
/// A forked child has none of them.
void forget_numbers();

}  // namespace bypass::socket
