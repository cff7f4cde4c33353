// Where the bytes of a connection within the host go. Each direction moves from the kernel to its ring (CUT) and back
// (RESUME, STOP) as both ends have announced. A violation of the rules ends the connection.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "observe/reasons.h"
#include "os/os.h"
#include "socket/family/kin.h"
#include "socket/policy.h"
#include "socket/shared/local_kernel.h"
#include "socket/shared/local_path.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/readiness.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::CarrierSwitch::Tx;
using Rx = shm::CarrierSwitch::Rx;

int kernel_number(const Socket& socket) {
  return kernel_half_state(socket).number;
}

namespace {

std::uint32_t milliseconds_of(const timeval& time) {
  return static_cast<std::uint32_t>(time.tv_sec * 1000 + (time.tv_usec + 999) / 1000);
}

std::uint32_t timeout_of(int fd, int name) {
  timeval time{};
  socklen_t bytes = sizeof time;
  return kernel->getsockopt(fd, SOL_SOCKET, name, &time, &bytes) == 0 ? milliseconds_of(time) : 0;
}

}  // namespace

namespace {

// getsockopt() returns 0, "no timeout", also for kNoTimeAtAll.
void take_timeout(std::uint32_t& known, std::uint32_t kernels) {
  if (kernels != 0 || known != kNoTimeAtAll) known = kernels;
}

}  // namespace

bool has_peek_offset(int fd) {
  int offset = -1;
  socklen_t bytes = sizeof offset;
  return kernel->getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, &bytes) == 0 && offset >= 0;
}

void take_timeouts(Socket& socket, int fd) {
  take_timeout(socket.receive_timeout_ms, timeout_of(fd, SO_RCVTIMEO));
  take_timeout(socket.send_timeout_ms, timeout_of(fd, SO_SNDTIMEO));
  int low_water = 1;
  socklen_t bytes = sizeof low_water;
  if (kernel->getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, &bytes) == 0 && low_water > 0)
    socket.low_water = static_cast<std::uint32_t>(low_water);
  int inq = 0;
  bytes = sizeof inq;
  if (kernel->getsockopt(fd, IPPROTO_TCP, TCP_INQ, &inq, &bytes) == 0) socket.set(kWantInq, inq != 0);
}

namespace {

// Stops watching the link's channel. The memory stays mapped for a thread that is copying.
void silence_local_link(LocalLink& link) {
  active_links.remove(link);
  if (link.watched) unwatch_channel(link.watched_fd);
  link.watched = false;
  close_channel(link);
}

}  // namespace

// A copy that is under way may belong to another process, over a link of its own. In a process that ends, it may belong
// to a thread that was stopped during it.
void end_local_link(Socket& socket, LocalLink& link) {
  if (shard().ended()) {
    silence_local_link(link);
    return forget_local_link(link);
  }
  const bool is_used = socket.has(kReading | kWriting) && is_copied_here(socket);
  is_used ? silence_local_link(link) : drop_local_link(link);
  signal_idle(socket);  // a thread that sleeps over its channel
}

namespace {

// Sends RST to the peer; our program gets ECONNRESET. A shutdown() alone could leave the peer waiting for room for a
// minute, because afterwards the kernel reports none.
void reset_in_kernel(int number) {
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  os::call(SYS_connect, number, os::address(&none), sizeof none);
  kernel->shutdown(number, SHUT_RDWR);
}

}  // namespace

// As the peer's kernel resets a connection: what has come before is still read.
void reset_behind_bytes(Socket& socket) {
  const int number = kernel_number(socket);
  int there = 0;
  if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&there)) != 0 || there == 0) return reset_in_kernel(number);
  socket.pending_error = ECONNRESET;
  kernel->shutdown(number, SHUT_WR);
}

void local_told_error(Socket& socket, int error) {
  int other = 0;
  socklen_t bytes = sizeof other;
  const long r =
      os::call(SYS_getsockopt, kernel_number(socket), SOL_SOCKET, SO_ERROR, os::address(&other), os::address(&bytes));
  if (r == 0 && other != error) socket.pending_error = static_cast<std::uint8_t>(other);
}

void break_link(Socket& socket, const char* what) {
  LocalEnd& end = end_of(socket);
  policy.record_why(kernel_number(socket), static_cast<unsigned>(observe::Reason::kSharedMemoryLost), what);
  if (LocalLink* const link = local_link(socket)) end_local_link(socket, *link);
  end.paths.abandon_writing();
  end.paths.stop_reading();
  end.stage = Stage::kOver;
  reset_in_kernel(kernel_number(socket));
  signal(socket, kEverything);
}

namespace {

// Computes the bytes before CUT that are still to be read. If calls that we do not see have read or written, the number
// is unknown, and the direction stays with the kernel.
void act_on_cut(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  // From now on the peer's bytes carry no acknowledgements.
  if (end.paths.tx() == Tx::kKernel && !end.more_in_kernel) push_held_bytes(kernel_number(socket));
  if (end.paths.is_stopping_reading()) return;  // CUT and our STOP crossed
  const auto read = kernel_bytes_read(kernel_number(socket));
  if (read.has_value() && read->error != 0) socket.pending_error = static_cast<std::uint8_t>(read->error);
  constexpr std::uint64_t kMostQueued = std::uint64_t{1} << 32;
  if (!read.has_value() || end.cut_at - read->bytes > kMostQueued) {
    if (!shm::claim_stop(link.in, end.paths.resumes_heard())) {
      // RESUME is coming, and will bring everything that the ring has.
      constexpr std::uint64_t kUntilThen = ~std::uint64_t{0} >> 1;
      if (!end.paths.on_cut(kUntilThen)) break_link(socket, "CUT out of turn");
      return;
    }
    // If the peer cannot send them again, the ring's bytes are lost, and the program must know.
    if (!say(link, shm::SwitchKind::kStop, end.consumer.consumed()))
      return break_link(socket, "the peer could not be asked to send the ring's bytes again");
    end.paths.stop_reading();
  } else if (!end.paths.on_cut(end.cut_at - read->bytes)) {
    break_link(socket, "CUT out of turn");
  }
}

// The peer sends again what the ring has after that point.
bool act_on_resume(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const std::size_t unread = end.consumer.peek(link.in, link.in.size).size();
  if (end.consumer.broken() != shm::Refusal::kNone) return false;
  const std::uint64_t read = end.consumer.consumed();
  return end.paths.on_resume(end.resume_at, read, read + unread, link.in.size);
}

bool is_being_read(const Socket& socket) {
  return socket.has(kReading) || kernel_half_state(socket).taking != 0;
}

// Skips bytes that come a second time, as they were read from the ring already.
void skip_returned(Socket& socket) {
  LocalEnd& end = end_of(socket);
  KernelHalf* const half = kernel_half(socket);
  while (half != nullptr && end.paths.is_skipping()) {
    half->in = half->error = false;
    const auto most = static_cast<long>(std::min(end.paths.to_skip(), shm::kMostRing));
    const long r = os::call(SYS_recvfrom, half->number, 0, most, MSG_TRUNC | MSG_DONTWAIT, 0, 0);
    if (r == -EAGAIN) return;
    half->in = half->watched;
    doubt_kernel_half(*half);
    if (r > 0) {
      end.paths.on_skipped(static_cast<std::uint64_t>(r));
      note_read_from_kernel(socket, static_cast<std::uint64_t>(r));
      continue;
    }
    if (r < 0) socket.pending_error = static_cast<std::uint8_t>(-r);
    end.paths.skip_none();
  }
}

// CUT and RESUME alternate, and at most one of each waits. The older one is due when the direction is in the carrier
// from which it moves the direction.
void settle_reading(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  for (;;) {
    (void)end_of_ring_read(socket, link);
    const bool in_ring = end.paths.rx() == Rx::kRing || end.paths.is_bounded();
    if (in_ring && !end.paths.is_ending() && end.resume_heard) {
      end.resume_heard = false;
      if (!act_on_resume(socket, link)) return break_link(socket, "RESUME out of turn");
    } else if (!in_ring && end.cut_heard) {
      end.cut_heard = false;
      act_on_cut(socket, link);
      if (!is_paired(socket)) return;
      leave_if_shut(socket, link);
    } else {
      break;
    }
    signal(socket, kIn);
  }
  if (!end.paths.is_skipping()) return;
  skip_returned(socket);
  if (!end.paths.is_skipping()) signal(socket, kIn);
}

}  // namespace

void settle(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const bool due = end.cut_heard || end.resume_heard || end.paths.is_ending() || end.paths.is_skipping();
  if (due && !is_being_read(socket)) settle_reading(socket, link);
  if (!is_paired(socket)) return;
  if (end.stop_heard && !socket.has(kWriting)) {
    end.stop_heard = false;
    hand_held_over(socket, link);
    if (!end.paths.on_stop(end.stop_at, end.producer, link.out.size)) return break_link(socket, "STOP out of turn");
    pump_return(socket, link);
  }
  // A peer that left sent STOP before: what it wants back still goes over the kernel.
  if (end.peer_gone && end.paths.tx() == Tx::kRing && !socket.has(kWriting)) abandon_ring(socket, link);
}

bool end_of_ring_read(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const std::uint64_t drop = end.paths.to_drop();
  if (!end.paths.on_read_from_ring(end.consumer)) return false;
  if (end.consumer.consume(link.in, drop)) wake_peer(link);
  if (!end.paths.is_stopping_reading() && !end.paths.is_returning()) (void)say(link, shm::SwitchKind::kOpen);
  return true;
}

void note_read_from_kernel(Socket& socket, std::uint64_t bytes) {
  LocalEnd& end = end_of(socket);
  const bool returning = end.paths.is_returning();
  end.paths.on_read_from_kernel(bytes);
  if (!returning || end.paths.is_returning()) return;
  if (LocalLink* const link = local_link(socket)) (void)say(*link, shm::SwitchKind::kOpen);
}

// Bytes that the kernel holds back for more stay together with the later ones.
bool try_cut(Socket& socket, LocalLink& link, bool more) {
  LocalEnd& end = end_of(socket);
  if (end.paths.tx() == Tx::kRing) return true;
  if (!end.may_cut || !end.paths.may_cut() || end.sends_in_kernel != 0 || end.peer_gone) return false;
  if (has_peer_shut(link, shm::Shut::kBoth)) return false;  // its kernel answers later bytes with a reset
  if (end.producer.unread(link.out) != 0 || end.producer.broken() != shm::Refusal::kNone) return false;
  const bool holds = more || end.more_in_kernel || socket.details->tcp.cork;
  if (!holds) push_held_bytes(kernel_number(socket));
  const auto written = kernel_written(kernel_number(socket));
  if (!written.has_value() || (holds && written->unsent != 0)) return false;
  if (!say(link, shm::SwitchKind::kCut, written->bytes)) return false;
  end.segment = written->segment;
  end.more_in_kernel = false;
  end.paths.cut();
  // The acknowledgement lets the peer's waiting bytes come before CUT, as after a segment with data.
  if (!holds) send_held_acknowledgement(kernel_number(socket));
  return true;
}

// Bytes that were held back in the ring are held back in the kernel, unless the peer's FIN has come: that releases
// them.
void pump_return(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const int more = end.more_in_kernel ? MSG_MORE : 0;
  while (end.paths.tx() == Tx::kReturning) {
    const std::uint64_t at = end.paths.return_at() & (link.out.size - 1);
    const std::uint64_t bytes = std::min(end.paths.return_end() - end.paths.return_at(), link.out.size - at);
    const long sent = os::call(SYS_sendto, kernel_number(socket), os::address(link.out.bytes + at),
                               static_cast<long>(bytes), MSG_DONTWAIT | MSG_NOSIGNAL | more);
    if (sent == -EAGAIN || sent == -EINTR) return want_kernel_out(socket);
    // A connection that takes nothing any more reports the error only once, and has done so now: it is kept for the
    // next call.
    if (sent < 0 && sent != -EPIPE) socket.pending_error = static_cast<std::uint8_t>(-sent);
    end.paths.on_returned(sent < 0 ? end.paths.return_end() - end.paths.return_at() : static_cast<std::uint64_t>(sent));
    const bool holds = more != 0 && (os::poll_now(kernel_number(socket), POLLRDHUP) & POLLRDHUP) == 0;
    if (end.paths.tx() == Tx::kKernel && !holds) push_held_bytes(kernel_number(socket));
  }
  if (end.fin_waits) {
    end.fin_waits = false;
    say_shut(link, shut_word(socket));
    kernel->shutdown(kernel_number(socket), SHUT_WR);
  }
  std::exchange(end.wants_room, false) ? signal(socket, kOut) : signal_idle(socket);
}

}  // namespace bypass::socket
