// Passing: descriptors of ours in messages of Unix sockets (SCM_RIGHTS, unix(7)).
//
// Where only processes of the family can receive the message, it has a ticket in place of each socket
// (socket/family/tickets.h), and the receiver goes on with the object. Elsewhere a connection is pumped first
// (preload/pumped.h), or the receiver gets what the kernel has beneath, and `bypass why` says so.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <vector>

#include "preload/fd_table.h"

namespace bypass::preload {

/// sendmsg() by a socket of the kernel's.
ssize_t send_passing(int fd, const msghdr* message, int flags);
int send_many_passing(int fd, mmsghdr* messages, unsigned count, int flags);

/// Called after a receive by a socket of the kernel's that has filled in the header. Gives the numbers that have come
/// for tickets to what the tickets are for.
void take_passed(const msghdr& message);

/// The filter that the process is about to install forbids what take_passed() needs.
void take_nothing();

}  // namespace bypass::preload
