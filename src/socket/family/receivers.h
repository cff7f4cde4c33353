// Receivers: tells which process of a family accepts at a listener, or receives from a datagram socket on the wire.
//
// A child that gives rights up takes the listeners and datagram sockets that it has inherited to the arena of the
// others with the same new rights, with the ports (move_sockets.h). That is right for a worker, which accepts or
// receives. It is wrong for a helper beside a master that accepts or receives itself: nothing would come to the master
// any more. So each such socket names a process that has accepted or received, and one that has waited by poll() or
// select(). An epoll set shows in its items.
#pragma once

#include "socket/socket.h"

namespace bypass::socket {

/// This process accepts or receives from the socket (note_receiver()), or polls it (note_poller()). The first process
/// that does so is named as long as it has the socket. Lock held.
void note_receiver(Socket& socket);
void note_poller(Socket& socket);
/// Whether another living process that still has the socket is named. Some system calls. Lock held.
[[nodiscard]] bool has_other_receiver(const Socket& socket);
[[nodiscard]] bool has_other_poller(const Socket& socket);
/// Whether this process has a number for a socket on the wire that it may be about to use. A socket from which another
/// process takes does not count. Takes the lock.
[[nodiscard]] bool has_use_of_wire();
/// Whether this process has a number of a listener, or of a bound datagram socket, on the wire. What comes to these
/// comes to the process that has the ports. Takes the lock.
[[nodiscard]] bool has_source_on_wire();

/// Called in an arena that is a copy of another one. Lock held.
void forget_receivers();
/// Whether a process of the family has ever used one of the family's sockets on the wire. Lock held.
[[nodiscard]] bool is_any_used(const Guard& guard);
/// Resets the connections that wait at listeners. Lock held.
void reset_waiting(Guard& guard);

}  // namespace bypass::socket
