// Takes a connection within the host back to the kernel: for good (local_leave()), before an end, or because its reader
// stays away.
// Tests: tests/system/local_leaving.py.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "os/os.h"
#include "os/own/let_others_run.h"
#include "socket/shared/local_kernel.h"
#include "socket/shared/local_path.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::CarrierSwitch::Tx;

namespace {

// The bytes that the peer has not read, if the kernel has room for all of them: they then arrive, whatever ends this
// process.
std::uint64_t returnable(Socket& socket, LocalLink& link) {
  shm::Producer& producer = end_of(socket).producer;
  const std::uint64_t unread = producer.unread(link.out);
  if (producer.broken() != shm::Refusal::kNone || unread == 0 || socket.has(kShutSend)) return 0;
  return has_kernel_room(kernel_number(socket), unread) ? unread : 0;
}

// Takes a direction from its ring back to the kernel: sends RESUME and the last `bytes` of the ring, which are
// returnable(). False: the peer is about to send STOP, or cannot be told; try again.
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
  end.may_cut = false;  // until OPEN comes
  pump_return(socket, link);
  return true;
}

// Lets another thread or the peer do what this thread waits for. False: the link is gone.
[[nodiscard]] bool give_way(Guard& guard, Socket& socket, const LocalLink& link) {
  hold(socket);
  guard.pause();
  // The other end may be in this process, too.
  look_at_kernel_halves(shard().clock().now(), true);
  let_others_run();
  guard.resume();
  hold_end(socket);
  return paired_link(socket) == &link;
}

// How long this end waits for the other, whose progress thread may look up to 150 ms later.
constexpr Duration kPatience = std::chrono::seconds(1);

// Waits until no thread copies to or from the rings. False: the link is gone, or a copy will never end.
bool wait_for_copies(Guard& guard, Socket& socket, const LocalLink& link) {
  while (socket.has(kReading | kWriting)) {
    if (shard().ended()) return false;  // the thread that copies has been stopped
    if (!give_way(guard, socket, link)) return false;
  }
  return true;
}

// Later writes go over the kernel, after what is unread in the ring. False: the link is broken.
bool stop_writing(Guard& guard, Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const Instant latest = shard().clock().now() + kPatience;
  for (;;) {
    if (!wait_for_copies(guard, socket, link)) return false;
    hear_channel(socket, link);
    if (paired_link(socket) != &link) return false;
    if (end.paths.tx() != Tx::kRing || return_ring(socket, link, returnable(socket, link))) break;
    if (shard().clock().now() >= latest)
      return break_link(socket, "the peer stops reading and does not say where"), false;
    if (!give_way(guard, socket, link)) return false;
  }
  end.paths.stop_writing();
  return true;
}

// Sends STOP, unless a RESUME must be read first.
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

// Keeps readable what was readable: waits until the bytes that the peer was asked for are in the kernel, as far as
// there is room. False: the link is gone.
bool await_returned(Guard& guard, Socket& socket, const LocalLink& link, std::uint64_t bytes) {
  // The peer's progress thread looks at most 150 ms later.
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

// Later reads come over the kernel, from the next byte on. False: this process must read the ring itself, as nobody can
// send its bytes again.
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
    if (end.paths.tx() == Tx::kReturning) return;  // nothing else may be written there before
  }
  if (link != nullptr) end_local_link(socket, *link);
  end.stage = Stage::kOver;
  signal_idle(socket);
}

void return_ring_before_end(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.paths.tx() != Tx::kRing || end.peer_gone) return;
  if (end.producer.held() != 0) say_shut(link, shut_word(socket));  // they are sent with the end
  release_held(socket, link);
  if (end.stop_heard || socket.has(kWriting)) return;
  const std::uint64_t unread = returnable(socket, link);
  if (unread == 0) return;
  // The bytes are sent with the FIN. Sent just before it, they could make the peer's kernel send what it holds back,
  // and this would be unread here, which causes a reset.
  end.more_in_kernel = true;
  if (!return_ring(socket, link, unread)) end.more_in_kernel = false;
}

// Uses the kernel's buffers, which take more, as they would without libbypass: a program may rely on that if it writes
// all it has before anybody reads.
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
  // If there is no room in the kernel, the ring holds more than the program would have had without libbypass.
  if (const std::uint64_t unread = returnable(socket, link); unread != 0) (void)return_ring(socket, link, unread);
}

}  // namespace bypass::socket
