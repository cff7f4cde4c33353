#include "socket/local_path.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <array>
#include <cerrno>

#include "fastpath/shm/message.h"
#include "fastpath/shm/segment.h"
#include "observe/reasons.h"
#include "socket/epoll.h"
#include "socket/kernel_half.h"
#include "socket/kin.h"
#include "socket/let_others_run.h"
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

namespace {

// The kernel reads "no time at all" back as none.
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
}

namespace {

// Nobody hears of it any more; the memory stays, for a thread in the middle of a copy.
void silence_local_link(LocalLink& link) {
  active_links.remove(link);
  if (link.watched) unwatch_channel(link.watched_fd);
  link.watched = false;
  close_channel(link);
}

}  // namespace

// A copy that is under way may be another process's, over a link of its own. In a process that ends it may be a
// thread's that is stopped in the middle of it.
void end_local_link(Socket& socket, LocalLink& link) {
  if (shard().ended()) {
    silence_local_link(link);
    return forget_local_link(link);
  }
  const bool is_used = socket.has(kReading | kWriting) && is_copied_here(socket);
  is_used ? silence_local_link(link) : drop_local_link(link);
  signal_idle(socket);  // who sleeps over its channel
}

namespace {

// RST to the peer, ECONNRESET to our program. A shutdown() alone could leave the peer waiting for room for a minute:
// from then on the kernel tells of none.
void reset_in_kernel(int number) {
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  os::call(SYS_connect, number, os::address(&none), sizeof none);
  kernel->shutdown(number, SHUT_RDWR);
}

// As the peer's kernel resets a connection: what has come before is still read.
void reset_behind_bytes(Socket& socket) {
  const int number = kernel_number(socket);
  int there = 0;
  if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&there)) != 0 || there == 0) return reset_in_kernel(number);
  socket.pending_error = ECONNRESET;
  kernel->shutdown(number, SHUT_WR);
}

}  // namespace

void local_told_error(Socket& socket, int error) {
  int other = 0;
  socklen_t bytes = sizeof other;
  const long r =
      os::call(SYS_getsockopt, kernel_number(socket), SOL_SOCKET, SO_ERROR, os::address(&other), os::address(&bytes));
  if (r == 0 && other != error) socket.pending_error = static_cast<std::uint8_t>(other);
}

void break_link(Socket& socket, const char* what) {
  LocalEnd& end = end_of(socket);
  if (environment.record_why != nullptr)
    environment.record_why(kernel_number(socket), static_cast<unsigned>(observe::Reason::kSharedMemoryLost), what);
  if (LocalLink* const link = local_link(socket)) end_local_link(socket, *link);
  end.paths.abandon_writing();
  end.paths.stop_reading();
  end.stage = Stage::kOver;
  reset_in_kernel(kernel_number(socket));
  signal(socket, kEverything);
}

// --- The channel

bool is_unread_by_peer(const Socket& socket, const LocalLink& link) {
  const LocalEnd& end = end_of(socket);
  return link.channel.is_open() && end.paths.tx() == Tx::kRing && !end.stop_heard &&
         link.out.peer->consumed.load(std::memory_order_seq_cst) != end.producer.published();
}

namespace {

// The end itself is the kernel's to tell, once: it knows of it at the same time.
void on_gone(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  (void)look_at_rings(socket, link);
  end.peer_gone = true;
  // It was killed with bytes of ours unread, as which the kernel resets a connection. What it has written is still
  // read.
  const bool unread = is_unread_by_peer(socket, link) && !has_peer_shut(link, shm::Shut::kReset);
  unread ? reset_behind_bytes(socket) : await_held_of_dead(socket, link);
  unwatch_channel(link.watched_fd);
  link.watched = false;
  close_channel(link);
  // Its end has come, and lets it go. Not in the middle of a copy: settle() then.
  if (end.producer.held() != 0 && end.paths.tx() == Tx::kRing && !socket.has(kWriting)) abandon_ring(socket, link);
  unread ? signal(socket, kEverything) : signal_idle(socket);
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
}

// For who sleeps, or where no poll looks at it.
void arm_where_needed(Socket& socket, LocalLink& link) {
  if (!link.active || is_to_be_armed(socket)) (void)arm_link(socket, link);
}

// A wake-up that this call has taken may have been for a thread that sleeps.
void pass_wake_on(Socket& socket, LocalLink& link) {
  (void)look_at_rings(socket, link);
  arm_where_needed(socket, link);
}

}  // namespace

// More than the kernel queues on such a socket, and than an honest peer has to say: wake-ups answer what was armed. Who
// says more while it is heard would hold the lock for ever.
constexpr int kMostHeard = 1024;

bool hear_channel(Socket& socket, LocalLink& link, Hears hears) {
  bool heard = false, woken = false;
  int packets = 0;
  link.channel_readable = false;
  std::array<std::byte, shm::kMessageRoom> room;
  while (link.channel.is_open()) {
    const shm::Channel::Received received = link.channel.receive(room);
    using Kind = shm::Channel::Received::Kind;
    if (received.kind == Kind::kNothing) break;
    if (++packets > kMostHeard) {
      break_link(socket, "it says more than anybody has to");
      return true;
    }
    if (received.kind == Kind::kWake) {
      link.armed_in = link.armed_out = false;
      woken = true;
      if (hears == Hears::kAll) continue;
      break;
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
  // The peer's bytes bring no acknowledgement along from here on.
  if (end.paths.tx() == Tx::kKernel && !end.more_in_kernel) push_held_bytes(kernel_number(socket));
  if (end.paths.is_stopping_reading()) return;  // it crossed STOP
  const auto read = kernel_bytes_read(kernel_number(socket));
  if (read.has_value() && read->error != 0) socket.pending_error = static_cast<std::uint8_t>(read->error);
  constexpr std::uint64_t kMostQueued = std::uint64_t{1} << 32;
  if (!read.has_value() || end.cut_at - read->bytes > kMostQueued) {
    if (!shm::claim_stop(link.in, end.paths.resumes_heard())) {
      // RESUME comes, and with it all that the ring has.
      constexpr std::uint64_t kUntilThen = ~std::uint64_t{0} >> 1;
      if (!end.paths.on_cut(kUntilThen)) break_link(socket, "CUT out of turn");
      return;
    }
    // Where the peer cannot send it again, what lies in the ring is lost, and the program is to know.
    if (!say(link, shm::SwitchKind::kStop, end.consumer.consumed()))
      return break_link(socket, "what it had put there could not be asked for again");
    end.paths.stop_reading();
  } else if (!end.paths.on_cut(end.cut_at - read->bytes)) {
    break_link(socket, "CUT out of turn");
  }
}

// What is behind it in the ring, the peer sends again.
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

// What was read from the ring already comes a second time.
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

// CUT and RESUME take turns: of each at most one waits, and the one that was said first is due when the direction lies
// where it says it lies.
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
  // One that left said STOP before: what it wants back goes over the kernel all the same.
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

// What the kernel holds back for more stays together with that.
bool try_cut(Socket& socket, LocalLink& link, bool more) {
  LocalEnd& end = end_of(socket);
  if (end.paths.tx() == Tx::kRing) return true;
  if (!end.may_cut || !end.paths.may_cut() || end.sends_in_kernel != 0 || end.peer_gone) return false;
  if (has_peer_shut(link, shm::Shut::kBoth)) return false;  // its kernel answers what comes with a reset
  if (end.producer.unread(link.out) != 0 || end.producer.broken() != shm::Refusal::kNone) return false;
  const bool holds = more || end.more_in_kernel || socket.details->tcp.cork;
  if (!holds) push_held_bytes(kernel_number(socket));
  const auto written = kernel_written(kernel_number(socket));
  if (!written.has_value() || (holds && written->unsent != 0)) return false;
  if (!say(link, shm::SwitchKind::kCut, written->bytes)) return false;
  end.segment = written->segment;
  end.more_in_kernel = false;
  end.paths.cut();
  return true;
}

// What was held back in the ring the kernel holds back, but for an end that has come: the peer's FIN lets it go there.
void pump_return(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const int more = end.more_in_kernel ? MSG_MORE : 0;
  while (end.paths.tx() == Tx::kReturning) {
    const std::uint64_t at = end.paths.return_at() & (link.out.size - 1);
    const std::uint64_t bytes = std::min(end.paths.return_end() - end.paths.return_at(), link.out.size - at);
    const long sent = os::call(SYS_sendto, kernel_number(socket), os::address(link.out.bytes + at),
                               static_cast<long>(bytes), MSG_DONTWAIT | MSG_NOSIGNAL | more);
    if (sent == -EAGAIN || sent == -EINTR) return want_kernel_out(socket);
    // A connection that takes nothing any more says why at the next call: what it says once, it has said.
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

void local_on_channel(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link == nullptr) return;
  link->channel_readable = false;
  if (end_of(socket).stage == Stage::kPairing) return step_pairing(socket, *link, shard().clock().now());
  if (is_paired(socket)) hear_earlier_rings(*link);
  hear_channel(socket, *link, Hears::kToWake);
  if (!is_paired(socket)) return;
  (void)look_at_rings(socket, *link);
  touch_link(socket, *link);
}

void local_on_kernel(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link != nullptr && end_of(socket).paths.tx() == Tx::kReturning) pump_return(socket, *link);
}

namespace {

// What the peer has not read, if the kernel has room for all of it: whatever ends this process then, it arrives.
std::uint64_t returnable(Socket& socket, LocalLink& link) {
  shm::Producer& producer = end_of(socket).producer;
  const std::uint64_t unread = producer.unread(link.out);
  if (producer.broken() != shm::Refusal::kNone || unread == 0 || socket.has(kShutSend)) return 0;
  return has_kernel_room(kernel_number(socket), unread) ? unread : 0;
}

// Takes a direction that lies in its ring back to the kernel: RESUME, and the last `bytes` of the ring, which are
// returnable(). False: the peer is about to say STOP, or cannot be told; try again.
bool return_ring(Socket& socket, LocalLink& link, std::uint64_t bytes) {
  LocalEnd& end = end_of(socket);
  if (end.stop_heard) return false;
  if (end.peer_gone) return abandon_ring(socket, link), true;
  hand_held_over(socket, link);
  if (end.producer.broken() != shm::Refusal::kNone) return false;
  const std::uint64_t at = end.producer.produced() - bytes;
  const std::uint32_t said = end.paths.resumes_said();
  if (!shm::claim_resume(link.out, said)) return false;
  if (!say(link, shm::SwitchKind::kResume, at)) {
    shm::take_back_resume(link.out, said);
    return false;
  }
  end.paths.resume(at, end.producer);
  end.may_cut = false;  // before OPEN
  pump_return(socket, link);
  return true;
}

// Another thread, or the peer, is about to do what is waited for. False: the link is gone.
[[nodiscard]] bool give_way(Guard& guard, Socket& socket, const LocalLink& link) {
  hold(socket);
  guard.pause();
  // The other end may be this process's, too.
  look_at_kernel_halves(shard().clock().now(), true);
  let_others_run();
  guard.resume();
  hold_end(socket);
  return paired_link(socket) == &link;
}

// How long another end, whose progress thread may look 150 ms later, is waited for.
constexpr Duration kPatience = std::chrono::seconds(1);

// Until no thread copies to or from the rings. False: the link is gone, or will not come to rest.
bool wait_for_copies(Guard& guard, Socket& socket, const LocalLink& link) {
  while (socket.has(kReading | kWriting)) {
    if (shard().ended()) return false;  // the thread that copies has been stopped
    if (!give_way(guard, socket, link)) return false;
  }
  return true;
}

// What is written from now on goes over the kernel, behind what is unread in the ring. False: the link is broken.
bool stop_writing(Guard& guard, Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const Instant latest = shard().clock().now() + kPatience;
  for (;;) {
    if (!wait_for_copies(guard, socket, link)) return false;
    hear_channel(socket, link);
    if (paired_link(socket) != &link) return false;
    if (end.paths.tx() != Tx::kRing || return_ring(socket, link, returnable(socket, link))) break;
    if (shard().clock().now() >= latest) return break_link(socket, "it stops reading and does not say where"), false;
    if (!give_way(guard, socket, link)) return false;
  }
  end.paths.stop_writing();
  return true;
}

// STOP, unless a RESUME is to be heard first.
enum class Asked : std::uint8_t { kYes, kNotYet, kCannot };

Asked ask_to_stop(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  (void)take_held_of_dead(socket, link);
  const bool unread = end.consumer.peek(link.in).size() != 0;
  if (end.paths.is_ending() || end.peer_gone) return unread ? Asked::kCannot : Asked::kYes;
  if (!shm::claim_stop(link.in, end.paths.resumes_heard())) return Asked::kNotYet;
  if (say(link, shm::SwitchKind::kStop, end.consumer.consumed())) return Asked::kYes;
  shm::take_back_stop(link.in);
  return Asked::kNotYet;
}

// What was readable stays so: the bytes that the peer was asked for are there before it goes on, as many of them as
// there is room for. False: the link is gone.
bool await_returned(Guard& guard, Socket& socket, const LocalLink& link, std::uint64_t bytes) {
  // Its progress thread looks 150 ms later at the latest.
  constexpr Duration kForThem = std::chrono::milliseconds(300), kNoMoreComes = std::chrono::milliseconds(2);
  const auto unread = [&] {
    int there = 0;
    return os::call(SYS_ioctl, kernel_number(socket), SIOCINQ, os::address(&there)) == 0 ? there : 0;
  };
  const int before = unread();
  int there = before;
  Instant now = shard().clock().now(), grown = now;
  const Instant latest = now + kForThem;
  while (now < latest && static_cast<std::uint64_t>(there - before) < bytes) {
    if (there != before && now - grown >= kNoMoreComes) break;
    if (!give_way(guard, socket, link)) return false;
    now = shard().clock().now();
    if (const int next = unread(); next != there) there = next, grown = now;
  }
  return true;
}

// What is read from now on comes over the kernel, from its next byte on. False: this process must read it from where it
// lies, for nobody can send it again.
bool stop_reading(Guard& guard, Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const Instant latest = shard().clock().now() + kPatience;
  for (;;) {
    if (!wait_for_copies(guard, socket, link)) return false;
    hear_channel(socket, link);
    if (is_paired(socket)) settle(socket, link);
    if (paired_link(socket) != &link) return false;
    if (!end.paths.has_stopped_reading()) {
      const std::size_t unread = end.consumer.peek(link.in, link.in.size).size();
      const Asked asked = ask_to_stop(socket, link);
      if (asked == Asked::kCannot) return false;
      if (asked == Asked::kYes) {
        end.paths.stop_reading();
        if (!await_returned(guard, socket, link, unread)) return false;
        continue;
      }
    }
    if (end.paths.has_stopped_reading() && !end.paths.is_skipping()) return true;
    if (shard().clock().now() >= latest) return false;
    if (!give_way(guard, socket, link)) return false;
  }
}

}  // namespace

void local_leave(Guard& guard, Socket& socket) {
  LocalEnd& end = end_of(socket);
  if (end.stage == Stage::kNone || end.stage == Stage::kOver) return;
  LocalLink* const link = local_link(socket);
  if (link != nullptr && end.stage == Stage::kPaired) {
    if (!stop_writing(guard, socket, *link) || !stop_reading(guard, socket, *link)) return;
    if (end.paths.tx() == Tx::kReturning) return;  // before others can write there
  }
  if (link != nullptr) end_local_link(socket, *link);
  end.stage = Stage::kOver;
  signal_idle(socket);
}

void return_ring_before_end(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.paths.tx() != Tx::kRing || end.peer_gone) return;
  if (end.producer.held() != 0) say_shut(link, shut_word(socket));  // they go with the end
  release_held(socket, link);
  if (end.stop_heard || socket.has(kWriting)) return;
  const std::uint64_t unread = returnable(socket, link);
  if (unread == 0) return;
  // They go with the FIN: in the moment before it, they could bring forth what the peer's kernel holds back for more,
  // and unread here that is a reset.
  end.more_in_kernel = true;
  if (!return_ring(socket, link, unread)) end.more_in_kernel = false;
}

// The kernel's buffers take more, as they would have without us: a program may rely on it that writes all it has before
// anybody reads.
void relieve_full_ring(Socket& socket, LocalLink& link, Instant now) {
  constexpr Duration kForReader = std::chrono::milliseconds(10);
  LocalEnd& end = end_of(socket);
  const std::uint64_t consumed = link.out.peer->consumed.load(std::memory_order_seq_cst);
  const bool waits = end.wants_room && end.paths.tx() == Tx::kRing && !socket.has(kWriting);
  if (!waits || link.stuck_since == kNever || consumed != link.stuck_at) {
    link.stuck_since = waits ? now : kNever;
    link.stuck_at = consumed;
    return;
  }
  if (now - link.stuck_since < kForReader) return;
  // Without room there, the ring holds more than the program would have without us.
  if (const std::uint64_t unread = returnable(socket, link); unread != 0) (void)return_ring(socket, link, unread);
}

// --- The rings

bool has_ring_room(const Socket& socket, LocalLink& link) {
  shm::Producer& producer = end_of(socket).producer;
  const std::uint64_t third = producer.most(link.out) / 3;
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
    if (socket.has(kHoldsBack)) release_if_answered(socket, link);
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

void want_room(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.most_unsent != 0) bound_ring(socket, link);  // by what is known now
  end.wants_room = true;
  link.seen_consumed = link.out.peer->consumed.load(std::memory_order_seq_cst);
  arm_where_needed(socket, link);
}

bool is_to_be_armed(const Socket& socket) {
  if (is_waited_for(socket)) return true;
  if (!has_kin()) return false;
  if (is_shared(socket)) return true;
  for (const EpollItem* item = socket.items; item != nullptr; item = item->target_next)
    if (is_shared(*item->set)) return true;
  return false;
}

void ask_for_wakes(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired || end.peer_gone) return;
  if (!link.armed_in) end.consumer.want(link.in);
  link.armed_in = true;
  if (end.wants_room) {
    if (!link.armed_out) end.producer.want(link.out);
    link.armed_out = true;
    // Not seen yet, however little it was.
    link.seen_consumed = ~std::uint64_t{0};
  }
}

bool arm_link(Socket& socket, LocalLink& link) {
  const LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired || end.peer_gone) return false;
  ask_for_wakes(socket, link);
  return look_at_rings(socket, link);
}

void touch_link(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired) return;
  if (LocalLink* const old = active_links.add(link)) (void)arm_link(*old->socket, *old);
  if (is_to_be_armed(socket)) {
    (void)arm_link(socket, link);
    return;
  }
  if (link.armed_in) end.consumer.disarm(link.in);
  if (link.armed_out) end.producer.disarm(link.out);
  link.armed_in = link.armed_out = false;
}

}  // namespace bypass::socket
