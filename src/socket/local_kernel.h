// How many bytes have gone through a kernel connection, by the kernel's own count: whatever calls wrote or read them.
#pragma once

#include <cstdint>
#include <optional>

namespace bypass::socket {

/// Bytes that were given to it to send. Nothing: it cannot be told.
std::optional<std::uint64_t> kernel_bytes_written(int fd);
/// Bytes that were read from it. No other thread may be reading. `peer_wrote`, where it is known, tells a connection
/// that was reset from one that ended in order, once it is closed.
std::optional<std::uint64_t> kernel_bytes_read(int fd, std::optional<std::uint64_t> peer_wrote = std::nullopt);

}  // namespace bypass::socket
