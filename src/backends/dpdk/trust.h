// Whom this process shares memory with over a vhost-user socket. The other end maps all of the port's buffers and sets
// the indices of its rings. So it has to be a process of the own user, of root, or of the user whom the port's setting
// names (peer=USER, wire_target.h).
#pragma once

#include <sys/types.h>

#include <string>

namespace bypass::dpdk {

/// From now on `user` may be at the other end of the socket at `path`. False: too many are named, none was added.
[[nodiscard]] bool trust_user(const std::string& path, uid_t user);

/// Whether the process at the other end of a connected Unix socket may be there (SO_PEERCRED). Else `problem` says
/// whose it is. Of a server that is the user it listened as.
[[nodiscard]] bool trusts_peer(int fd, const char* path, std::string& problem);

}  // namespace bypass::dpdk
