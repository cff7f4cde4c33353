// UnixQueue: what the other end of a connected Unix socket has not read, as the kernel tells it by sock_diag(7).
#pragma once

#include <cstdint>
#include <optional>

namespace bypass::os {

/// Bytes that lie unread at the other end of the Unix stream socket with that inode, in the network namespace of this
/// thread. nullopt: the kernel does not tell (it has no UNIX_DIAG), or there is no such socket. Some system calls.
[[nodiscard]] std::optional<std::uint32_t> unread_at_other_end(std::uint32_t inode);

}  // namespace bypass::os
