#include "os/net/unix_queue.h"

#include "os/net/unix_diag.h"

namespace bypass::os {

std::optional<std::uint32_t> unread_at_other_end(std::uint32_t inode) {
  UnixDiag diag;
  const auto other = diag.peer_of(inode);
  return other.has_value() ? diag.unread_in(*other) : std::nullopt;
}

}  // namespace bypass::os
