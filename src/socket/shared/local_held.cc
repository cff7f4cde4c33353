// Bytes that a ring within the host holds back for more, as the kernel does after MSG_MORE and under TCP_CORK: tcp(7),
// send(2). They lie in the ring, and the reader does not see them. They are released by a send without MSG_MORE, by an
// option (TCP_CORK cleared, TCP_NODELAY set), by a full segment, a full ring, the way back to the kernel, the
// connection's end, and after a time.
// Tests: tests/system/local_held.py.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>

#include "os/os.h"
#include "socket/shared/local_path.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

namespace shm = fastpath::shm;

namespace {

/// tcp_probe0_base() of Linux within a host: after this time bytes that are held back alone are sent.
constexpr Duration kAlone = std::chrono::milliseconds(200);
/// TCP_DELACK_MIN. Without TCP_CORK, held bytes are sent when earlier bytes are acknowledged: with the peer's next
/// bytes, or after this time.
constexpr Duration kAcknowledged = std::chrono::milliseconds(40);
/// The progress thread is woken once, and then looks each tick for this time: a program that corks each answer does not
/// pay for a wake-up each time.
constexpr Duration kTicks = std::chrono::seconds(1);
constexpr std::uint32_t kLeastSegment = 536;

/// The progress thread of this process ticks until then. Lock held.
Instant ticks_until{};

bool is_corked(const Socket& socket) {
  return socket.details->tcp.cork;
}

void expect_tick(Instant held_until) {
  if (held_until <= ticks_until) return;
  ticks_until = held_until + kTicks;
  local_policy.call_progress();
}

void note_held(Socket& socket, LocalLink& link) {
  const shm::Producer& producer = end_of(socket).producer;
  socket.set(kHoldsBack, is_corked(socket) || producer.held() != 0);
  if (producer.held() == 0) {
    link.held_until = kNever;
  } else if (link.held_until == kNever) {
    // What this end wrote last counts as acknowledged once the peer has written after it.
    link.held_at = link.in.peer->produced.load(std::memory_order_relaxed);
    link.awaits_answer = !is_corked(socket) && link.held_at == end_of(socket).seen_at_send;
    link.held_until = shard().clock().now() + (link.awaits_answer ? kAcknowledged : kAlone);
    expect_tick(link.held_until);
  }
}

}  // namespace

void begin_holding(Socket& socket, int fd) {
  int on = 0;
  socklen_t bytes = sizeof on;
  // A listener's connections inherit it.
  if (kernel->getsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, &bytes) == 0) socket.details->tcp.cork = on != 0;
  socket.set(kHoldsBack, is_corked(socket));
}

void publish_or_hold(Socket& socket, LocalLink& link, std::size_t bytes, bool more, std::uint64_t ticks) {
  shm::Producer& producer = end_of(socket).producer;
  if (!more && !socket.has(kHoldsBack)) [[likely]] {
    if (producer.publish(link.out, bytes, ticks)) wake_peer(link);
    end_of(socket).seen_at_send = end_of(socket).consumer.seen();
    return;
  }
  const bool holds = more || is_corked(socket);
  release_if_answered(socket, link);
  const std::uint64_t before = producer.published();
  const std::uint32_t segment = std::max(end_of(socket).segment, kLeastSegment);
  if (holds ? producer.hold(link.out, bytes, segment, ticks) : producer.release(link.out, bytes, ticks))
    wake_peer(link);
  if (producer.published() != before) {
    end_of(socket).seen_at_send = end_of(socket).consumer.seen();
    link.held_until = kNever;  // the rest waits from now on
  }
  note_held(socket, link);
}

void release_held(Socket& socket, LocalLink& link) {
  shm::Producer& producer = end_of(socket).producer;
  if (producer.held() == 0) return;
  if (producer.release(link.out, 0, Clock::ticks())) wake_peer(link);
  note_held(socket, link);
}

void release_when_due(Socket& socket, LocalLink& link, Instant now) {
  note_held(socket, link);  // another process of the family may have held bytes back, and died
  if (now >= link.held_until) release_held(socket, link);
}

bool may_hold_back(const Socket& socket, Instant now) {
  return end_of(socket).producer.held() != 0 || now < ticks_until;
}

void release_if_answered(Socket& socket, LocalLink& link) {
  if (end_of(socket).producer.held() == 0 || !link.awaits_answer || is_peer_shut(link)) return;
  if (link.in.peer->produced.load(std::memory_order_relaxed) != link.held_at) release_held(socket, link);
}

// A peer that has closed the socket reads nothing any more, and has sent STOP before its FIN: then hand_held_over()
// does it.
void release_if_ended(Socket& socket, LocalLink& link) {
  if (is_peer_shut(link) && !shm::is_reader_stopping(link.out) && !is_corked(socket)) release_held(socket, link);
}

void release_before_reset(Socket& socket, LocalLink& link) {
  const bool written = link.in.peer->produced.load(std::memory_order_relaxed) != link.held_at;
  if (written && !is_corked(socket)) release_held(socket, link);
}

// The reader computes what is returned from what it has seen of the ring.
void hand_held_over(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  end.more_in_kernel = end.more_in_kernel || end.producer.held() != 0;
  release_held(socket, link);
}

// After an error there is no receiver, and the next call must report the error.
void abandon_ring(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const bool held = end.producer.held() != 0;
  if (!held || (os::poll_now(kernel_half_state(socket).number, 0) & (POLLHUP | POLLERR)) != 0)
    end.paths.abandon_writing();
  else
    end.paths.abandon_writing_but_held(end.producer);
  hand_held_over(socket, link);
  if (end.paths.tx() == shm::CarrierSwitch::Tx::kReturning) pump_return(socket, link);
}

void local_note_cork(Socket& socket, bool pushes) {
  LocalLink* const link = paired_link(socket);
  if (link == nullptr) return;
  release_if_answered(socket, *link);
  if (pushes) release_held(socket, *link);
  note_held(socket, *link);
}

namespace {

bool is_held_by_peer(const LocalLink& link) {
  const shm::SideBlock& peer = *link.in.peer;
  return static_cast<std::int64_t>(peer.written.load(std::memory_order_relaxed) -
                                   peer.produced.load(std::memory_order_relaxed)) > 0;
}

}  // namespace

// A peer that closes or shuts has released its held bytes before. After a reset the kernel would have thrown them away,
// too. Bytes after this end's own shutdown() are read all the same; then POLLRDHUP says nothing about the peer.
bool take_held_of_dead(Socket& socket, LocalLink& link) {
  if (!is_held_by_peer(link) || has_peer_shut(link, shm::Shut::kReset)) return false;
  if (socket.has(kShutReceive) && !end_of(socket).peer_gone) return false;
  const int bits = os::poll_now(kernel_half_state(socket).number, POLLRDHUP);
  const bool reset = (bits & POLLERR) != 0 || ((bits & POLLHUP) != 0 && !socket.has(kShutSend));
  if ((bits & POLLRDHUP) == 0 || reset) return false;
  return end_of(socket).consumer.take_held(link.in);
}

void await_held_of_dead(Socket& socket, LocalLink& link) {
  constexpr timespec kInTheSameMoment{0, 5'000'000};
  if (!is_held_by_peer(link)) return;
  pollfd kernels{kernel_half_state(socket).number, POLLRDHUP, 0};
  os::call(SYS_ppoll, os::address(&kernels), 1, os::address(&kInTheSameMoment), 0, 8);
  (void)take_held_of_dead(socket, link);
}

}  // namespace bypass::socket
