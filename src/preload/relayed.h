// Relayed: numbers of a process that has given rights up, for which a relay listens or connects on the port
// (runtime/family/pump/relay.h). Such a number names a Unix socket in place of the TCP one, as a pumped one does
// (pumped.h). Most calls are then the kernel's. What a Unix socket answers otherwise than a TCP one is done here.
#pragma once

#include <sys/socket.h>

#include "preload/uses.h"

namespace bypass::preload {

/// listen() and connect() for which socket::kRelayed was the result: asks the relay, and gives the number to what it
/// answers. connect() waits as connect(2) does. Returns 0 or a negative errno.
long listen_by_relay(const Use& use, int fd, int backlog);
long connect_by_relay(const Use& use, int fd, const sockaddr* address, socklen_t length);

/// The kernel has found an address in use. Returns whether a relay may have had it for a socket that is closed, and has
/// it no more.
bool bind_after_relay();

// The kernel has answered EINVAL for a number of the kernel's, which may be such a Unix socket. Each returns the call's
// result, with errno set; -1 with EINVAL where it is another socket.
int accept_relayed(int fd, sockaddr* address, socklen_t* length, int flags);
int listen_relayed(int fd);
int connect_relayed(int fd);

}  // namespace bypass::preload
