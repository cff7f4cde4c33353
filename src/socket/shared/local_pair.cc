// The two ends of a connection within the host look for each other, after some calls, and then share memory.
// Tests: tests/socket/local_pairing_test.cc, tests/system/local_meetings.py.

#include <algorithm>

#include "observe/reasons.h"
#include "socket/family/kin.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/shared/local_kernel.h"
#include "socket/shared/local_link.h"
#include "socket/shared/local_path.h"
#include "socket/socket.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;

namespace {

/// After an attempt that found nobody, the next one comes after so many times the number of calls.
constexpr std::uint32_t kLater = 4;
constexpr std::uint8_t kMostAttempts = 3;
constexpr Duration kAttempt = std::chrono::milliseconds(500);
/// The ring of each direction. If the reader stays away, bytes that do not fit go over the kernel: relieve_full_ring().
constexpr std::uint64_t kRing = std::uint64_t{256} << 10;

/// Records the reason under the listener's address: the other address differs for each connection.
void tell(int fd, bool client, observe::Reason reason, const char* detail) {
  const Endpoint address = client ? kernel_peer(fd) : kernel_name(fd);
  policy.record_why_at(fd, static_cast<unsigned>(reason), address, detail);
}

void report_refusal(int fd, bool client, const char* detail) {
  tell(fd, client, observe::Reason::kNoSharedMemory, detail);
}

/// Whether the program has an io_uring, by which it may read any descriptor, made by direct system calls that nobody
/// saw. Where the search takes long it is not made for each connection: it uses at most a hundredth of the time.
/// Releases the lock meanwhile.
bool finds_io_uring(Guard& guard, Socket& socket) {
  static Instant next{};
  const Instant before = shard().clock().now();
  if (before < next) return false;
  next = kNever;  // no other thread searches until this one has finished
  hold(socket);
  guard.pause();
  const bool found = has_io_uring();
  const Duration taken = shard().clock().now() - before;
  guard.resume();
  hold_end(socket);
  next = before + 100 * taken;
  return found;
}

}  // namespace

/// Watches the descriptor on which the link is heard now: a listener becomes a channel. Another object may have got the
/// same number by now.
void watch_link(Socket& socket, LocalLink& link, int fd) {
  if (link.watched && link.watched_fd != fd) unwatch_channel(link.watched_fd);
  if (link.watched_fd != fd) signal_idle(socket);
  link.watched = fd >= 0 && watch_channel(socket, fd);
  link.watched_fd = fd;
}

namespace {

void begin_attempt(Socket& socket, int fd, Instant now) {
  LocalEnd& end = end_of(socket);
  if (!has_numbers_for_link(now)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "the process has too few descriptors left (RLIMIT_NOFILE, ulimit -n)");
  }
  if (is_shared(socket)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "another process has the socket, too");
  }
  if (has_peek_offset(fd)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "SO_PEEK_OFF is set");
  }
  if (is_bound_below_ring(fd)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "SO_SNDBUF or TCP_NOTSENT_LOWAT is small, and so is the peer's SO_RCVBUF");
  }
  end.attempts++;
  LocalLink* const link = make_local_link(socket);
  if (link == nullptr) return;
  watch_kernel_half(socket, fd);
  if (!has_kernel_half(socket)) return drop_local_link(*link);
  if (!may_pass_messages()) {
    drop_local_link(*link);
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "the process may not call sendmsg() and recvmsg()");
  }
  if (!local_policy.need_progress()) {
    drop_local_link(*link);
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "the kernel refuses the process a progress thread");
  }
  link->tcp = fd;
  if (!end.client) take_timeouts(socket, fd);  // the listener's values, which only the kernel has had until now
  end.stage = Stage::kPairing;
  link->pairing.begin(local_policy.directory->folder(), fd, {kRing, kRing}, now, now + kAttempt);
  step_pairing(socket, *link, now);
}

void give_up_pairing(Socket& socket, LocalLink& link, shm::Refusal refusal, const char* why) {
  LocalEnd& end = end_of(socket);
  link.pairing.give_up(refusal);
  end.refusal = refusal;
  const bool again = refusal == shm::Refusal::kTimedOut && end.attempts < kMostAttempts;
  if (!again) report_refusal(link.tcp, end.client, why);
  if (!again) local_counts.refused++;
  drop_local_link(link);
  end.stage = again ? Stage::kLooking : Stage::kOver;
  signal_idle(socket);
}

}  // namespace

void step_pairing(Socket& socket, LocalLink& link, Instant now) {
  LocalEnd& end = end_of(socket);
  using State = shm::Pairing::State;
  // Stops the attempt if other processes have got the socket, as they know nothing of it. Once the peer has heard that
  // this end is ready, it would write into memory that nobody reads.
  if (is_shared(socket))
    return give_up_pairing(socket, link, shm::Refusal::kNoResources, "another process has the socket, too");
  const State state = link.pairing.step(now);
  if (state == State::kWaiting) return watch_link(socket, link, link.pairing.descriptor());
  if (state == State::kRefused) {
    const shm::Refusal refusal = link.pairing.refusal();
    return give_up_pairing(socket, link, refusal, shm::to_string(refusal));
  }
  link.segment = link.pairing.take_segment();
  link.channel = link.pairing.take_channel();
  link.out = link.segment.outgoing();
  link.in = link.segment.incoming();
  end.stage = Stage::kPaired;
  end.id = objects->sockets.id_of(&socket);
  local_counts.shared++;
  if (socket.has(kShutSend)) say_shut(link, shut_word(socket));
  begin_holding(socket, link.tcp);
  take_buffers(socket, link, link.tcp);  // before OPEN, as the peer may write after it
  const bool host = link.pairing.role() == shm::Role::kHost;
  if (host) end.may_cut = say(link, shm::SwitchKind::kOpen);
  link.pairing = {};
  socket.details->bound = kernel_name(link.tcp);
  socket.details->peer = kernel_peer(link.tcp);
  watch_link(socket, link, link.channel.descriptor());
  (void)arm_link(socket, link);  // no poll looks at the link yet
  signal_idle(socket);
}

namespace {

bool is_due(const LocalEnd& end) {
  // The accepting side begins a little later, when the other end's name is there.
  constexpr std::uint32_t kBehind = 2;
  const std::uint32_t after = shard().budgets().local_after;
  std::uint32_t calls = after + (end.client ? 0 : std::min(after / 2, kBehind));
  for (std::uint8_t i = 0; i < end.attempts; i++) calls *= kLater;
  return end.calls >= calls;
}

bool may_begin(const LocalEnd& end) {
  return end.stage == Stage::kLooking && end.reads_in_kernel == 0 && end.sends_in_kernel == 0 && is_due(end);
}

}  // namespace

void local_count_call(Guard& guard, Socket& socket, int fd) {
  local_answer(guard, socket);
  LocalEnd& end = end_of(socket);
  end.calls++;
  if (may_begin(end)) {
    if (finds_io_uring(guard, socket)) {
      ask_all_to_leave();
      tell(fd, end.client, observe::Reason::kEscapedIoUring, "found in /proc/self/maps");
    }
    local_answer(guard, socket);
    if (may_begin(end)) begin_attempt(socket, fd, guard.context().now);
  }
  if (end.stage != Stage::kPairing) return;
  LocalLink* const link = local_link(socket);  // null: another process makes the attempt
  if (link != nullptr && link->pairing.next_timeout() <= guard.context().now)
    step_pairing(socket, *link, guard.context().now);
}

}  // namespace bypass::socket
