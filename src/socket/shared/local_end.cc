// A connection within the host ends with its last number, or with this process's last number for it.
// Tests: tests/system/local.py, tests/system/local_held.py.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "os/os.h"
#include "socket/shared/local_kernel.h"
#include "socket/shared/local_link.h"
#include "socket/shared/local_path.h"
#include "socket/socket.h"
#include "socket/wait/epoll.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;

namespace {

void reset_on_close(const Socket& socket) {
  const struct linger now { .l_onoff = 1, .l_linger = 0 };
  const int number = kernel_half_state(socket).number;
  if (number >= 0) kernel->setsockopt(number, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

/// Sends what the peer wants back before the end. The time is limited: if a peer asks and does not read, its connection
/// is reset.
void give_back(Socket& socket, LocalLink& link) {
  constexpr Duration kPatience = std::chrono::seconds(1);
  constexpr timespec kTry{0, 100'000'000};
  const Instant latest = shard().clock().now() + kPatience;
  wake_peers();  // it may sleep for room that was freed since
  while (is_returning(socket) && shard().clock().now() < latest) {
    pump_return(socket, link);
    pollfd room{kernel_half_state(socket).number, POLLOUT, 0};
    if (is_returning(socket)) os::call(SYS_ppoll, os::address(&room), 1, os::address(&kTry), 0, 8);
  }
  if (is_returning(socket)) reset_on_close(socket);
}

/// Bytes that were read from the ring come again in the kernel's queue: close() would count them as unread.
void await_skipped(Socket& socket, LocalLink& link) {
  constexpr Duration kPatience = std::chrono::milliseconds(100);
  constexpr timespec kTry{0, 10'000'000};
  const Instant latest = shard().clock().now() + kPatience;
  while (end_of(socket).paths.is_skipping() && shard().clock().now() < latest) {
    pollfd bytes{kernel_half_state(socket).number, POLLIN, 0};
    os::call(SYS_ppoll, os::address(&bytes), 1, os::address(&kTry), 0, 8);
    settle(socket, link);
    if (!is_paired(socket)) return;
  }
}

/// Whether the ring has bytes that come from nowhere else. Bytes after STOP or RESUME are sent over the kernel by the
/// peer, or held back there.
bool is_unread_in_ring(const Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const std::size_t there = end.consumer.peek(link.in).size();
  return !end.paths.has_stopped_reading() && end.paths.from_ring(there, end.consumer) != 0;
}

/// Whether close() would reset the connection in the kernel, had all bytes gone there: if some are unread, or SO_LINGER
/// requires it.
bool ends_by_reset(Socket& socket, LocalLink& link) {
  const int number = kernel_half_state(socket).number;
  if (is_unread_in_ring(socket, link)) return true;
  int unread = 0;
  if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&unread)) == 0 && unread > 0) return true;
  struct linger how {};
  socklen_t bytes = sizeof how;
  const long r = os::call(SYS_getsockopt, number, SOL_SOCKET, SO_LINGER, os::address(&how), os::address(&bytes));
  return r == 0 && how.l_onoff != 0 && how.l_linger == 0;
}

/// Tells a writer that does not look at its kernel's side that nothing is read any more. What it has written since goes
/// over the kernel and is answered there. With a reset STOP is not sent: the peer's program must see the reset.
void say_end(const Socket& socket, LocalLink& link, bool resets) {
  say_shut(link, resets ? shm::Shut::kReset : shm::Shut::kEnd);
  const LocalEnd& end = end_of(socket);
  if (end.peer_gone || end.paths.is_ending() || end.paths.has_stopped_reading()) return;
  if (shm::claim_stop(link.in, end.paths.resumes_heard()) && !resets)
    // if it cannot be sent, the peer sees the channel's end
    (void)say(link, shm::SwitchKind::kStop, end.consumer.consumed());
}

/// Ends a paired connection. What the peer has to say may end the pair first. Before a reset nothing is returned,
/// because the reset would drop what the kernel has not sent by then. The peer finds in the ring what was written
/// there, followed by the reset.
void end_paired(Socket& socket, LocalLink& link) {
  hear_channel(socket, link);
  if (!is_paired(socket)) return;
  await_skipped(socket, link);
  if (!is_paired(socket)) return;
  const bool resets = ends_by_reset(socket, link);
  if (resets) {
    release_before_reset(socket, link);
    if (!end_of(socket).more_in_kernel) push_held_bytes(kernel_half_state(socket).number);
    reset_on_close(socket);
  } else {
    return_ring_before_end(socket, link);
    give_back(socket, link);
  }
  say_end(socket, link, resets);
}

}  // namespace

void local_end(Guard& guard, Socket& socket) {
  local_answer(guard, socket);
  if (LocalLink* const link = paired_link(socket)) end_paired(socket, *link);
  if (LocalLink* const link = local_link(socket)) end_local_link(socket, *link);
}

void local_forget(Socket& socket) {
  if (LocalLink* const link = local_link(socket)) end_local_link(socket, *link);
}

void local_number_goes(Socket& socket, int fd) {
  LocalLink* const link = local_link(socket);
  if (link == nullptr || link->tcp != fd || end_of(socket).stage != Stage::kPairing) return;
  drop_local_link(*link);
  end_of(socket).stage = Stage::kOver;
  signal_idle(socket);
}

}  // namespace bypass::socket
