// How many unread bytes a writer within the host may have if it asked for few: SO_SNDBUF (socket(7)) and
// TCP_NOTSENT_LOWAT (tcp(7)). The kernel takes what the reader's buffer holds and, after that, what the writer's may.
// Its counts are of memory and depend on the sizes of writes: on loopback 125 to 176 KiB with the smallest writer's
// buffer. So the ring's bound is at the upper end. Without either option the kernel takes more than a ring.
// Tests: tests/system/local_bounded.py.
#include <algorithm>

#include "socket/shared/local_kernel.h"
#include "socket/shared/local_path.h"

namespace bypass::socket {

namespace {

/// What the kernel takes beyond the reader's window, however small the request: one large segment, and the begun part
/// of the next.
constexpr std::uint64_t kLeastUnsent = std::uint64_t{52} << 10;
/// The kernel's largest segment within a host.
constexpr std::uint64_t kLargestSegment = std::uint64_t{32} << 10;
/// tcp_rmem's default (tcp(7)), used if the peer's kernel has not reported its size.
constexpr std::uint64_t kUsualReceiveBuffer = std::uint64_t{128} << 10;
/// The least bound that Producer::bound() can give a ring of kRing (local.cc).
constexpr std::uint64_t kLeastBound = std::uint64_t{96} << 10;

/// Segments are at most half of the largest window.
std::uint64_t bound_of(std::uint64_t most_unsent, std::uint64_t receive_buffer) {
  return receive_buffer + std::max(most_unsent, std::min(kLeastUnsent, receive_buffer / 2));
}

/// The window is half of the buffer (tcp(7), tcp_adv_win_scale) while nothing is unread.
std::uint64_t buffer_behind(std::uint64_t window) {
  return window != 0 ? 2 * window : kUsualReceiveBuffer;
}

/// How much the peer's kernel holds for a reader with a buffer of so many bytes; 0: not known. A kernel that has
/// announced a window does not take it back when the buffer is made smaller. It takes what the window allows until the
/// buffer is full, and the last segment as a whole.
std::uint64_t held_for_reader(std::uint64_t window, std::uint64_t buffer) {
  if (buffer == 0) return buffer_behind(window);
  return std::min(std::max(buffer, window), buffer + std::min(window / 2, kLargestSegment));
}

}  // namespace

void bound_ring(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  link.peers_buffer = link.out.peer->receive_buffer.load(std::memory_order_relaxed);
  const std::uint64_t holds = held_for_reader(end.window, link.peers_buffer);
  end.producer.bound(link.out, end.most_unsent == 0 ? link.out.size : bound_of(end.most_unsent, holds));
}

void take_buffers(Socket& socket, LocalLink& link, int fd) {
  LocalEnd& end = end_of(socket);
  const KernelBuffers buffers = kernel_buffers(fd);
  end.most_unsent = buffers.most_unsent;
  end.window = buffers.window;
  link.out.own->receive_buffer.store(kernel_receive_buffer(fd), std::memory_order_relaxed);
  bound_ring(socket, link);
}

bool is_bound_below_ring(int fd, std::uint32_t peers_buffer) {
  const KernelBuffers buffers = kernel_buffers(fd);
  if (buffers.most_unsent == 0) return false;
  return bound_of(buffers.most_unsent, held_for_reader(buffers.window, peers_buffer)) < kLeastBound;
}

bool bound_anew(Socket& socket, LocalLink& link, int fd) {
  take_buffers(socket, link, fd);  // the peer must know it, even if this end leaves
  return !is_bound_below_ring(fd, link.peers_buffer);
}

void local_note_buffers(Guard& guard, Socket& socket, int fd) {
  LocalLink* const link = paired_link(socket);
  if (link == nullptr) return;
  const std::uint64_t before = end_of(socket).producer.most(link->out);
  if (!bound_anew(socket, *link, fd)) {
    local_leave(guard, socket);
    return end_leaving(guard, socket);
  }
  if (end_of(socket).producer.most(link->out) > before) signal(socket, kOut);
}

}  // namespace bypass::socket
