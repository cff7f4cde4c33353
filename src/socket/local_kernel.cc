#include "socket/local_kernel.h"

#include <asm/ioctls.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

#include "socket/os.h"

namespace bypass::socket {

namespace {

/// tcpi_state, as <netinet/tcp.h> has it, which cannot stand beside <linux/tcp.h>.
enum KernelState : std::uint8_t { kTimeWait = 6, kClose = 7, kCloseWait = 8, kLastAck = 9, kClosing = 11 };

// The peer's FIN has a sequence number, and tcpi_bytes_received counts it; SIOCINQ does not. A socket in TIME-WAIT says
// kClose, and so does one that was reset, perhaps without a FIN.
std::uint64_t counted_fin(const tcp_info& info, std::optional<std::uint64_t> peer_wrote) {
  const auto state = static_cast<KernelState>(info.tcpi_state);
  // All that the peer wrote is there, and no more: it was reset.
  if (state == kClose && peer_wrote == info.tcpi_bytes_received) return 0;
  return state == kTimeWait || state == kClose || state == kCloseWait || state == kLastAck || state == kClosing ? 1 : 0;
}

std::optional<tcp_info> info_of(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const long r = os::call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, os::address(&info), os::address(&bytes));
  // The last of what is asked for here; Linux 4.19.
  if (r != 0 || bytes < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans) return std::nullopt;
  return info;
}

}  // namespace

// tcpi_bytes_sent counts payload each time it is sent.
std::optional<std::uint64_t> kernel_bytes_written(int fd) {
  const auto info = info_of(fd);
  if (!info) return std::nullopt;
  return info->tcpi_bytes_sent - info->tcpi_bytes_retrans + info->tcpi_notsent_bytes;
}

// What came in and is still there changes between the two questions while the peer writes.
std::optional<std::uint64_t> kernel_bytes_read(int fd, std::optional<std::uint64_t> peer_wrote) {
  for (;;) {
    const auto before = info_of(fd);
    int unread = 0;
    if (!before || os::call(SYS_ioctl, fd, SIOCINQ, os::address(&unread)) != 0 || unread < 0) return std::nullopt;
    const auto after = info_of(fd);
    if (!after) return std::nullopt;
    const bool changed =
        before->tcpi_bytes_received != after->tcpi_bytes_received || before->tcpi_state != after->tcpi_state;
    if (changed) continue;
    return after->tcpi_bytes_received - counted_fin(*after, peer_wrote) - static_cast<std::uint64_t>(unread);
  }
}

}  // namespace bypass::socket
