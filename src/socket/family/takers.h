// Takers: which process of a family uses a listener.
//
// A child that gives rights up takes the listeners that it has inherited to the arena of those who have given up the
// same, with the ports (rehome.h). That is right for a worker, which accepts. It is wrong for a helper beside a master
// that accepts by itself: the master would have no connection any more. So each listener names a process that has
// accepted from it, and one that has waited for it by poll() or select(). An epoll set shows in its items.
#pragma once

#include "socket/socket.h"

namespace bypass::socket {

/// This process accepts from the listener, or polls it. The first that does is named for as long as it has the
/// listener. Lock held.
void note_taker(Socket& listener);
void note_poller(Socket& listener);
/// Whether another process, which lives and still has it, does. Some system calls. Lock held.
[[nodiscard]] bool is_taken_by_another(const Socket& listener);
[[nodiscard]] bool is_polled_by_another(const Socket& listener);
/// Whether this process has a number of a socket on the wire that it may be about to use: not of a listener that
/// another process takes the connections of. Takes the lock.
[[nodiscard]] bool has_use_of_wire();

/// In an arena that is a copy of another one. Lock held.
void forget_takers();
/// Whether a process of the family has ever used one of its listeners. Lock held.
[[nodiscard]] bool is_any_listener_used(const Guard& guard);
/// Resets the connections that wait at listeners. Lock held.
void reset_waiting(Guard& guard);

}  // namespace bypass::socket
