// How much a writer within the host may have unread, where it has asked for little: SO_SNDBUF (socket(7)) and
// TCP_NOTSENT_LOWAT (tcp(7)). The kernel takes what the reader's buffer holds and, behind that, what the writer's may.
// Its counts are of memory and depend on the sizes of writes: on loopback 125 to 176 KiB where the writer's is the
// least, so the ring's bound is at the upper end. Without either option the kernel takes more than a ring.
#include <algorithm>

#include "socket/shared/local_kernel.h"
#include "socket/shared/local_path.h"

namespace bypass::socket {

namespace {

/// What the kernel takes beyond the reader's window, however little was asked for: a large segment, and what it begins
/// of the next.
constexpr std::uint64_t kLeastUnsent = std::uint64_t{52} << 10;
/// tcp_rmem's default (tcp(7)), where the peer's kernel has not said how much it holds.
constexpr std::uint64_t kUsualReceiveBuffer = std::uint64_t{128} << 10;
/// Of a ring of kRing (local.cc), what Producer::bound() can do.
constexpr std::uint64_t kLeastBound = std::uint64_t{96} << 10;

/// Segments are at most half of the largest window.
std::uint64_t bound_of(std::uint64_t most_unsent, std::uint64_t receive_buffer) {
  return receive_buffer + std::max(most_unsent, std::min(kLeastUnsent, receive_buffer / 2));
}

/// The window is half of the buffer (tcp(7), tcp_adv_win_scale) while nothing is unread.
std::uint64_t buffer_behind(std::uint64_t window) {
  return window != 0 ? 2 * window : kUsualReceiveBuffer;
}

}  // namespace

// A window that was told is not taken back, though the buffer be made smaller behind it.
void bound_ring(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.most_unsent == 0) return end.producer.bound(link.out, link.out.size);
  const std::uint32_t peers = link.out.peer->receive_buffer.load(std::memory_order_relaxed);
  const std::uint64_t holds = peers != 0 ? std::max(peers, end.window) : buffer_behind(end.window);
  end.producer.bound(link.out, bound_of(end.most_unsent, holds));
}

void take_buffers(Socket& socket, LocalLink& link, int fd) {
  LocalEnd& end = end_of(socket);
  const KernelBuffers buffers = kernel_buffers(fd);
  end.most_unsent = buffers.most_unsent;
  end.window = buffers.window;
  link.out.own->receive_buffer.store(kernel_receive_buffer(fd), std::memory_order_relaxed);
  bound_ring(socket, link);
}

bool is_bound_below_ring(int fd) {
  const KernelBuffers buffers = kernel_buffers(fd);
  return buffers.most_unsent != 0 && bound_of(buffers.most_unsent, buffer_behind(buffers.window)) < kLeastBound;
}

void local_note_buffers(Guard& guard, Socket& socket, int fd) {
  LocalLink* const link = paired_link(socket);
  if (link == nullptr) return;
  if (is_bound_below_ring(fd)) {
    local_leave(guard, socket);
    return end_leaving(guard, socket);
  }
  const std::uint64_t before = end_of(socket).producer.most(link->out);
  take_buffers(socket, *link, fd);
  if (end_of(socket).producer.most(link->out) > before) signal(socket, kOut);
}

}  // namespace bypass::socket
