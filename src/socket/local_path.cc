#include "socket/local_path.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/time.h>

#include <array>
#include <cerrno>

#include "fastpath/shm/message.h"
#include "observe/reasons.h"
#include "socket/kernel_half.h"
#include "socket/local_kernel.h"
#include "socket/os.h"
#include "socket/readiness.h"
#include "socket/wait.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::Switch::Tx;
using Rx = shm::Switch::Rx;

namespace {

int kernel_number(const Socket& socket) {
  return kernel_half_state(socket).number;
}

std::uint32_t milliseconds_of(const timeval& time) {
  return static_cast<std::uint32_t>(time.tv_sec * 1000 + (time.tv_usec + 999) / 1000);
}

std::uint32_t timeout_of(int fd, int name) {
  timeval time{};
  socklen_t bytes = sizeof time;
  return kernel->getsockopt(fd, SOL_SOCKET, name, &time, &bytes) == 0 ? milliseconds_of(time) : 0;
}

}  // namespace

bool say(LocalLink& link, shm::SwitchKind kind, std::uint64_t count) {
  const shm::SwitchMessage message{kind, count};
  return link.channel.send(std::as_bytes(std::span(&message, 1))) == shm::Channel::Sent::kSent;
}

void take_timeouts(Socket& socket, int fd) {
  socket.receive_timeout_ms = timeout_of(fd, SO_RCVTIMEO);
  socket.send_timeout_ms = timeout_of(fd, SO_SNDTIMEO);
  int low_water = 1;
  socklen_t bytes = sizeof low_water;
  if (kernel->getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, &bytes) == 0 && low_water > 0)
    socket.low_water = static_cast<std::uint32_t>(low_water);
}

namespace {

// Nobody hears of it any more; the memory stays, for a thread in the middle of a copy.
void silence_local_link(LocalLink& link) {
  active_links.remove(link);
  if (link.watched) unwatch_channel(link.watched_fd);
  link.watched = false;
  link.channel.close();
}

}  // namespace

// A copy that is under way may be another process's, over a link of its own. In a process that ends it may be a
// thread's that is stopped in the middle of it.
void end_local_link(const Socket& socket, LocalLink& link) {
  if (shard().ended()) {
    silence_local_link(link);
    return forget_local_link(link);
  }
  if (!socket.has(kReading | kWriting) || !is_copied_here(socket)) return drop_local_link(link);
  silence_local_link(link);
}

namespace {

// RST to the peer, ECONNRESET to our program. A shutdown() alone could leave the peer waiting for room for a minute:
// from then on the kernel tells of none.
void reset_in_kernel(int number) {
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  os::call(SYS_connect, number, os::address(&none), sizeof none);
  kernel->shutdown(number, SHUT_RDWR);
}

}  // namespace

void break_link(Socket& socket, const char* what) {
  LocalEnd& end = end_of(socket);
  if (environment.record_why != nullptr)
    environment.record_why(kernel_number(socket), static_cast<unsigned>(observe::Reason::kSharedMemoryLost), what);
  if (LocalLink* const link = local_link(socket)) end_local_link(socket, *link);
  end.paths.stop_writing();
  end.paths.stop_reading();
  end.stage = Stage::kOver;
  reset_in_kernel(kernel_number(socket));
  signal(socket, kEverything);
}

// --- The channel

namespace {

void on_gone(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  end.peer_gone = true;
  // It was killed with bytes of ours unread, as which the kernel resets a connection. What it has written is still
  // read.
  const bool unread = end.paths.tx() == Tx::kRing && !end.stop_heard &&
                      link.out.peer->consumed.load(std::memory_order_seq_cst) != end.producer.produced();
  if (unread) reset_in_kernel(kernel_number(socket));
  unwatch_channel(link.watched_fd);
  link.watched = false;
  link.channel.close();
  signal(socket, kEverything);
}

void on_message(Socket& socket, const shm::SwitchMessage& message) {
  LocalEnd& end = end_of(socket);
  switch (message.kind) {
    case shm::SwitchKind::kOpen:
      end.may_cut = true;
      break;
    case shm::SwitchKind::kCut:
      if (end.cut_heard) return break_link(socket, "CUT out of turn");
      end.cut_heard = true;
      end.cut_at = message.count;
      break;
    case shm::SwitchKind::kResume:
      if (end.resume_heard) return break_link(socket, "RESUME out of turn");
      end.resume_heard = true;
      end.resume_at = message.count;
      break;
    case shm::SwitchKind::kStop:
      end.stop_heard = true;
      end.stop_at = message.count;
      break;
    case shm::SwitchKind::kLeave:
      end.leave_heard = true;
      break;
  }
}

}  // namespace

namespace {

// The host's patience has ended just as this end said that it was ready.
bool is_refused_late(const LocalEnd& end, std::span<const std::byte> said) {
  if (end.may_cut || end.cut_heard || end.paths.tx() != Tx::kKernel || end.paths.rx() != Rx::kKernel) return false;
  const auto message = shm::parse_message(said);
  return message.ok() && message.value.kind == shm::MessageKind::kRefused;
}

// Nothing has left the kernel's connection: it goes on.
void leave_unused(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  end.stage = Stage::kOver;
  end_local_link(socket, link);
  signal_idle(socket);
}

// A wake-up that this call has taken may have been for a thread that sleeps.
void pass_wake_on(Socket& socket, LocalLink& link) {
  (void)look_at_rings(socket, link);
  if (shard().sleepers() != 0 || is_shared(socket)) (void)arm_link(socket, link);
}

}  // namespace

bool hear_channel(Socket& socket, LocalLink& link) {
  bool heard = false, woken = false;
  std::array<std::byte, shm::kMessageRoom> room;
  while (link.channel.is_open()) {
    const shm::Channel::Received received = link.channel.receive(room);
    using Kind = shm::Channel::Received::Kind;
    if (received.kind == Kind::kNothing) break;
    if (received.kind == Kind::kWake) {
      link.armed_in = link.armed_out = false;
      woken = true;
      continue;
    }
    heard = true;
    if (received.kind == Kind::kGone) {
      on_gone(socket, link);
      break;
    }
    const auto said = std::span(room).first(std::min(received.bytes, room.size()));
    if (is_refused_late(end_of(socket), said)) {
      leave_unused(socket, link);
      return true;
    }
    const auto message = shm::parse_switch(said);
    if (!message.has_value() || received.cut || received.many) {
      break_link(socket, "it said what has no meaning");
      return true;
    }
    on_message(socket, *message);
    if (!is_paired(socket)) return true;
    settle(socket, link);
    if (!is_paired(socket)) return true;
  }
  if (woken) pass_wake_on(socket, link);
  return heard;
}

namespace {

// The bytes before CUT that are still to be read. Where calls that we do not see have read or written, nobody knows,
// and the direction stays with the kernel.
void act_on_cut(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const auto read = kernel_bytes_read(kernel_number(socket));
  if (read.has_value() && read->error != 0) socket.pending_error = static_cast<std::uint8_t>(read->error);
  constexpr std::uint64_t kMostQueued = std::uint64_t{1} << 32;
  if (!read.has_value() || end.cut_at - read->bytes > kMostQueued) {
    // Where the peer cannot send it again, what lies in the ring is lost, and the program is to know.
    if (!shm::claim_stop(link.in) || !say(link, shm::SwitchKind::kStop, end.consumer.consumed()))
      return break_link(socket, "what it had put there could not be asked for again");
    end.paths.stop_reading();
  } else if (!end.paths.on_cut(end.cut_at - read->bytes)) {
    break_link(socket, "CUT out of turn");
  }
}

}  // namespace

namespace {

bool is_being_read(const Socket& socket) {
  return socket.has(kReading) || kernel_half_state(socket).taking != 0;
}

// CUT and RESUME take turns: of each at most one waits, and the one that was said first is due when the direction lies
// where it says it lies.
void settle_reading(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  for (;;) {
    (void)end_of_ring_read(socket, link);
    const bool in_ring = end.paths.rx() == Rx::kRing || end.paths.is_bounded();
    if (in_ring && !end.paths.is_ending() && end.resume_heard) {
      end.resume_heard = false;
      if (!end.paths.on_resume(end.resume_at, end.consumer, link.in.size))
        return break_link(socket, "RESUME out of turn");
    } else if (!in_ring && end.cut_heard) {
      end.cut_heard = false;
      act_on_cut(socket, link);
      if (!is_paired(socket)) return;
    } else {
      return;
    }
    signal(socket, kIn);
  }
}

// What is read from now on comes over the kernel. False: this process must read it from where it lies.
bool stop_reading(LocalEnd& end, LocalLink& link) {
  if (end.paths.has_stopped_reading()) return true;
  const bool first = shm::claim_stop(link.in);
  const bool unread = end.consumer.peek(link.in).size() != 0;
  // What lies in the ring before bytes that went over the kernel already cannot follow them there.
  const bool ending = !first || end.paths.is_ending() || end.resume_heard;
  const bool can_ask =
      !end.peer_gone && !(unread && ending) && say(link, shm::SwitchKind::kStop, end.consumer.consumed());
  if (!can_ask && unread) return false;  // nobody can send it again
  end.paths.stop_reading();
  return true;
}

}  // namespace

void settle(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if ((end.cut_heard || end.resume_heard || end.paths.is_ending()) && !is_being_read(socket))
    settle_reading(socket, link);
  if (!is_paired(socket)) return;
  if (end.stop_heard && !socket.has(kWriting)) {
    end.stop_heard = false;
    if (!end.paths.on_stop(end.stop_at, end.producer, link.out.size)) return break_link(socket, "STOP out of turn");
    pump_return(socket, link);
  }
  if (end.leave_heard && !is_being_read(socket)) {
    end.leave_heard = false;
    // What lies in the ring is to follow over the kernel: a reader that leaves, too, could not take it along.
    if (stop_reading(end, link)) signal(socket, kIn);
  }
  // One that left said STOP before: what it wants back goes over the kernel all the same.
  if (end.peer_gone && end.paths.tx() == Tx::kRing && !socket.has(kWriting)) end.paths.stop_writing();
}

bool end_of_ring_read(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (!end.paths.on_read_from_ring(end.consumer)) return false;
  (void)say(link, shm::SwitchKind::kOpen);
  return true;
}

bool try_cut(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.paths.tx() == Tx::kRing) return true;
  if (!end.may_cut || !end.paths.may_cut() || end.sends_in_kernel != 0 || end.peer_gone) return false;
  // After a RESUME: only once the reader has come to it.
  if (end.producer.room(link.out, link.out.size).size() != link.out.size) return false;
  const auto written = kernel_bytes_written(kernel_number(socket));
  if (!written.has_value()) return false;
  shm::end_resume(link.out);
  if (!say(link, shm::SwitchKind::kCut, *written)) return false;
  end.paths.cut();
  return true;
}

void pump_return(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  while (end.paths.tx() == Tx::kReturning) {
    const std::uint64_t at = end.paths.return_at() & (link.out.size - 1);
    const std::uint64_t bytes = std::min(end.paths.return_end() - end.paths.return_at(), link.out.size - at);
    const long sent = os::call(SYS_sendto, kernel_number(socket), os::address(link.out.bytes + at),
                               static_cast<long>(bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == -EAGAIN || sent == -EINTR) return want_kernel_out(socket, kernel_number(socket));
    // A connection that takes nothing any more says why at the next call.
    end.paths.on_returned(sent < 0 ? end.paths.return_end() - end.paths.return_at() : static_cast<std::uint64_t>(sent));
  }
  if (end.fin_waits) {
    end.fin_waits = false;
    say_shut(link);
    kernel->shutdown(kernel_number(socket), SHUT_WR);
  }
  signal(socket, kOut);
}

void local_on_channel(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link == nullptr) return;
  if (end_of(socket).stage == Stage::kPairing) return step_pairing(socket, *link, shard().clock().now());
  hear_channel(socket, *link);
  if (!is_paired(socket)) return;
  (void)look_at_rings(socket, *link);
  touch_link(socket, *link);
}

void local_on_kernel(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link != nullptr && end_of(socket).paths.tx() == Tx::kReturning) pump_return(socket, *link);
}

namespace {

// Another thread, or the peer, is about to do what is waited for.
void give_way(Guard& guard, Socket& socket) {
  hold(socket);
  guard.pause();
  sched_yield();
  guard.resume();
  hold_end(socket);
}

// What is written from now on goes over the kernel. What is unread in the ring follows, if the peer's process gets to
// it soon; else it stays there for it. False: the link is broken.
bool stop_writing(Guard& guard, Socket& socket, LocalLink& link) {
  // Its progress thread looks every 150 ms at the latest.
  constexpr Duration kPatience = std::chrono::seconds(1), kForStop = std::chrono::milliseconds(500);
  LocalEnd& end = end_of(socket);
  const Instant began = shard().clock().now(), latest = began + kPatience;
  bool asked = false;
  for (;;) {
    hear_channel(socket, link);
    if (!is_paired(socket)) return false;
    if (end.paths.tx() != Tx::kRing) break;
    const bool unread = link.out.peer->consumed.load(std::memory_order_seq_cst) != end.producer.produced();
    const bool in_time = shard().clock().now() < began + kForStop;
    if (unread && in_time && !end.peer_gone && (asked || say(link, shm::SwitchKind::kLeave))) {
      asked = true;
    } else if (shm::claim_resume(link.out)) {
      (void)say(link, shm::SwitchKind::kResume, end.producer.produced());
      break;
    }
    // STOP comes: the peer is about to say it.
    if (shard().clock().now() >= latest) return break_link(socket, "it stops reading and does not say where"), false;
    give_way(guard, socket);
    if (!is_paired(socket)) return false;
  }
  if (end.paths.tx() != Tx::kReturning) end.paths.stop_writing();
  return true;
}

}  // namespace

void local_leave(Guard& guard, Socket& socket) {
  LocalEnd& end = end_of(socket);
  if (end.stage == Stage::kNone || end.stage == Stage::kOver) return;
  while (socket.has(kReading | kWriting)) {
    if (shard().ended()) return;  // the thread that copies has been stopped
    give_way(guard, socket);
  }
  LocalLink* const link = local_link(socket);
  if (link != nullptr && end.stage == Stage::kPaired) {
    if (!stop_writing(guard, socket, *link) || !stop_reading(end, *link)) return;
    if (end.paths.tx() == Tx::kReturning) return;
  }
  if (link != nullptr) drop_local_link(*link);
  end.stage = Stage::kOver;
  signal_idle(socket);
}

// The kernel's buffers take more, as they would have without us: a program may rely on it that writes all it has before
// anybody reads.
void relieve_full_ring(Socket& socket, LocalLink& link, Instant now) {
  constexpr Duration kPatience = std::chrono::milliseconds(10);
  LocalEnd& end = end_of(socket);
  const std::uint64_t consumed = link.out.peer->consumed.load(std::memory_order_seq_cst);
  const bool waits = end.wants_room && end.paths.tx() == Tx::kRing && !socket.has(kWriting);
  if (!waits || link.stuck_since == kNever || consumed != link.stuck_at) {
    link.stuck_since = waits ? now : kNever;
    link.stuck_at = consumed;
    return;
  }
  if (now - link.stuck_since < kPatience || !shm::claim_resume(link.out)) return;
  if (!say(link, shm::SwitchKind::kResume, end.producer.produced())) return shm::end_resume(link.out);
  end.paths.resume();
  // An empty ring does not tell that RESUME was heard: bytes put there now would come before the kernel's.
  end.may_cut = false;
  end.wants_room = false;
  signal(socket, kOut);
}

// --- The rings

bool has_ring_room(const Socket& socket, LocalLink& link) {
  shm::Producer& producer = end_of(socket).producer;
  const std::size_t third = link.out.size / 3;
  return producer.room(link.out, third).size() >= third || producer.broken() != shm::Refusal::kNone;
}

bool look_at_rings(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired) return false;
  std::uint32_t bits = 0;
  const std::uint64_t produced = link.in.peer->produced.load(std::memory_order_seq_cst);
  if (produced != link.seen_produced) {
    link.seen_produced = produced;
    bits |= kIn;
  }
  if (end.wants_room) {
    const std::uint64_t consumed = link.out.peer->consumed.load(std::memory_order_seq_cst);
    if (consumed != link.seen_consumed) {
      link.seen_consumed = consumed;
      if (has_ring_room(socket, link)) {
        end.wants_room = false;
        bits |= kOut;
      }
    }
  }
  if (bits == 0) return false;
  signal(socket, bits);
  return true;
}

bool arm_link(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired || end.peer_gone) return false;
  if (!link.armed_in) end.consumer.want(link.in);
  link.armed_in = true;
  if (end.wants_room) {
    if (!link.armed_out) end.producer.want(link.out);
    link.armed_out = true;
    // Not seen yet, however little it was.
    link.seen_consumed = ~std::uint64_t{0};
  }
  return look_at_rings(socket, link);
}

void touch_link(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired) return;
  if (LocalLink* const old = active_links.add(link)) (void)arm_link(*old->socket, *old);
  if (shard().sleepers() != 0 || is_shared(socket)) {
    (void)arm_link(socket, link);
    return;
  }
  if (link.armed_in) end.consumer.disarm(link.in);
  if (link.armed_out) end.producer.disarm(link.out);
  link.armed_in = link.armed_out = false;
}

}  // namespace bypass::socket
