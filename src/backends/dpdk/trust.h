// Trust: with which users this process shares memory over a vhost-user socket. The other end maps all of the port's
// buffers and sets the indices of its rings. So it must be a process of this process's user, of root, or of the user
// that the port's setting names (peer=USER, wire_target.h).
#pragma once

#include <sys/types.h>

#include <string>

namespace bypass::dpdk {

/// From now on a process of `user` may be at the other end of the socket at `path`. False: too many users are named
/// already, and this one was not added.
[[nodiscard]] bool trust_user(const std::string& path, uid_t user);

/// Whether the process at the other end of a connected Unix socket may be there (SO_PEERCRED). Otherwise `problem`
/// names its user. For a server, that is the user as which it called listen().
[[nodiscard]] bool trusts_peer(int fd, const char* path, std::string& problem);

}  // namespace bypass::dpdk
