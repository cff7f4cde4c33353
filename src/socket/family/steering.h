// Steering: what a device needs beside the frames if it lets the kernel keep its interface (PortCaps::steering).
//
// It is told which flows are ours. The kernel has the same addresses, so no port number may be used by both. A
// connection's number is bound by its kernel descriptor, and is kept after close() until nothing is left of the
// connection.
#pragma once

#include <cstdint>

#include "socket/shard.h"
#include "stack/address.h"
#include "stack/context.h"
#include "stack/stack.h"

namespace bypass::socket {

struct Socket;

/// Tells the devices which flows the stack has noted since the last call (FlowLog). Called by the ports' owner, lock
/// held.
void steer_noted_flows(Stack& stack, Context& context);

/// For a port on whose interface the kernel has other addresses or routes than before. The stack follows, and the
/// device is told which flows have come and gone with the addresses. Called by the ports' owner, lock held. After an
/// error everything is as it was.
Result<bool> change_interface(Stack& stack, Context& context, std::uint16_t port, const InterfaceConfig& interface);

/// The local end for a connection to `remote`. If the connection goes out by a port that steers, it has a number that
/// the kernel has bound to `fd`. Otherwise it is `local`, unchanged. kAddressNotAvailable: no number is left
/// (connect(2)).
Result<Endpoint> reserve_endpoint(Guard& guard, const Socket& socket, int fd, const Endpoint& local,
                                  const Endpoint& remote);

/// Keeps a connection's number while its descriptor is being closed. It is made before the connection is given up, and
/// asked to keep the number afterwards. Lock held.
class NumberKeeper {
 public:
  explicit NumberKeeper(const Socket& socket);
  void keep(int fd) const;

 private:
  bool steered_ = false;
  Endpoint local_, remote_;
};

/// Gives back the numbers of connections that have ended. Lock held.
void give_numbers_back();
/// Whether this process keeps any numbers. Without the lock.
bool keeps_numbers();
/// Called in a forked child, which keeps no numbers.
void forget_numbers();

}  // namespace bypass::socket
