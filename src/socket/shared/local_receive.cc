// Receives on a connection within the host: from the ring, from the kernel, and across from one to the other.
// Tests: tests/system/local.py, tests/system/local_faults.py.
#include <poll.h>

#include "os/io_cursor.h"
#include "socket/control_message.h"
#include "socket/kernel_message.h"
#include "socket/shared/local_condition.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Rx = shm::CarrierSwitch::Rx;

void leave_if_shut(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (!socket.has(kShutSend) || !socket.has(kShutReceive) || end.peer_gone) return;
  if (end.paths.is_ending() || end.paths.has_stopped_reading() || end.resume_heard) return;
  const bool bounded = end.paths.is_bounded();  // the kernel's bytes come first
  if (end.paths.rx() == Rx::kKernel && !bounded && end.consumer.peek(link.in).size() != 0) return;  // CUT is on its way
  if (!shm::claim_stop(link.in, end.paths.resumes_heard())) return;
  // What the ring has by now came before the STOP, and is still read.
  const std::uint64_t all = end.consumer.consumed() + end.consumer.peek(link.in, link.in.size).size();
  if (!say(link, shm::SwitchKind::kStop, all)) return shm::take_back_stop(link.in);
  all == end.consumer.consumed() && !bounded ? end.paths.stop_reading() : end.paths.stop_reading_behind(all);
}

namespace {

/// A read that the kernel answers at once. Meanwhile no thread, also in other processes of the family, counts what was
/// read from the kernel.
class ReadsInKernel : Busy {
 public:
  explicit ReadsInKernel(Socket& socket) : Busy(socket, kReading) {}
};

class LocalReceiving final : public LocalCondition {
 public:
  LocalReceiving(Socket& socket, std::span<const iovec> data, int flags)
      : LocalCondition(socket, kIn), data_(data), flags_(flags), total_(total_bytes(data)) {}

  long attempt(Guard& guard) override;
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] bool has_transferred() const final { return done_ != 0; }

 private:
  [[nodiscard]] std::size_t target() const {
    const std::size_t least = (flags_ & MSG_WAITALL) != 0 ? total_ : socket_.low_water;
    return std::clamp<std::size_t>(least, 1, std::max<std::size_t>(total_, 1));
  }
  [[nodiscard]] bool peeks() const { return (flags_ & MSG_PEEK) != 0; }
  long step(Guard& guard);
  long take_from_ring(Guard& guard, LocalLink& link);
  [[nodiscard]] bool copy_out(Guard& guard, const shm::Parts<const std::byte>& parts, std::size_t bytes);
  long ring_is_empty(Guard& guard, LocalLink& link);
  long take_from_kernel(Guard& guard);
  long peeked();
  void peek_behind(Guard& guard);
  [[nodiscard]] bool is_enough() const;
  [[nodiscard]] bool may_be_cut() const;
  long look_in_kernel();
  bool is_end_of_dead();
  bool is_at_urgent_mark();
  bool passes_urgent_byte(Guard& guard);
  bool goes_elsewhere(long answer);
  long ask(Guard& guard, std::size_t most);
  void keep(long error);
  long failed(long error);

  std::span<const iovec> data_;
  int flags_;
  std::size_t total_, done_ = 0;
  std::uint32_t began_ = 0;  // others_version() when an attempt began
  bool asked_ = false;
};

long LocalReceiving::attempt(Guard& guard) {
  for (;;) {
    wait_for_copy(guard, kReading);
    if (dissolved()) return done_ != 0 ? static_cast<long>(done_) : failure(Error::kBrokenPipe);
    if (peeks()) {  // a peek begins again
      done_ = 0;
      asked_ = false;
      began_ = others_version();
    }
    const long r = step(guard);
    if (r == kAgain && done_ >= target()) return static_cast<long>(done_);
    if (r != kChanged) return r;
  }
}

// If both carriers have bytes, a call takes from both. A result smaller than asked tells a program such as libuv that
// there was no more, and with EPOLLHUP that this was the end.
long LocalReceiving::step(Guard& guard) {
  if (end().stage != Stage::kPaired) return take_from_kernel(guard);
  LocalLink* const link = local_link(socket_);
  if (link == nullptr) return failure(Error::kReset);  // the process that had it mapped is gone
  settle(socket_, *link);
  if (!is_paired(socket_)) return kChanged;
  if (end().paths.is_skipping()) return again();  // the first of the kernel's next bytes are still on their way
  return end().paths.rx() == Rx::kRing ? take_from_ring(guard, *link) : take_from_kernel(guard);
}

long LocalReceiving::take_from_ring(Guard& guard, LocalLink& link) {
  shm::Consumer& consumer = end().consumer;
  // To be called first: it may find and signal new bytes, and again() must not miss that.
  touch_link(socket_, link);
  if (socket_.has(kHoldsBack)) release_if_answered(socket_, link);
  const shm::Parts<const std::byte> parts = consumer.peek(link.in, std::max<std::size_t>(total_ - done_, 1));
  if (consumer.broken() != shm::Refusal::kNone) {
    break_link(socket_, shm::to_string(consumer.broken()));
    return kChanged;
  }
  const std::size_t bytes = end().paths.from_ring(std::min(parts.size(), total_ - done_), consumer);
  if (bytes == 0) return total_ == 0 && parts.size() != 0 ? 0 : ring_is_empty(guard, link);
  const bool dropped = (flags_ & MSG_TRUNC) != 0;
  const std::size_t before = done_;
  if (!dropped && !copy_out(guard, parts, bytes)) return failed(failure(Refusal::kBadPointer));
  done_ = before + bytes;
  if (peeks()) {
    if (done_ < total_ && end().paths.is_all_of_ring(bytes, consumer) && !is_at_urgent_mark())
      keep(ask(guard, total_ - done_));
    return peeked();
  }
  if (consumer.consume(link.in, bytes)) wake_peer(link);
  return is_enough() && !end().paths.is_all_of_ring(0, consumer) ? static_cast<long>(done_) : kChanged;
}

// A long copy releases the lock; the bytes stay in place until they are consumed. False: the program's memory is not
// mapped.
bool LocalReceiving::copy_out(Guard& guard, const shm::Parts<const std::byte>& parts, std::size_t bytes) {
  std::optional<OutsideLock> outside;
  if (bytes > kCopyInLock) outside.emplace(guard, socket_, kReading);
  IoCursor cursor(data_);
  cursor.skip(done_);
  const std::size_t first = std::min(parts.part[0].size(), bytes);
  return cursor.write(parts.part[0].data(), first) && cursor.write(parts.part[1].data(), bytes - first);
}

// The ring has no more bytes, so the kernel's connection is asked: for its end, an error, or whether the stream goes on
// there. Whatever the peer has put into the ring before such an event is in the ring by the time the kernel reports it.
long LocalReceiving::ring_is_empty(Guard& guard, LocalLink& link) {
  LocalEnd& e = end();
  if (end_of_ring_read(socket_, link)) return kChanged;
  if (e.resume_heard) return again();  // another thread asks the kernel, and signals
  leave_if_shut(socket_, link);
  if (e.paths.rx() != Rx::kRing) return kChanged;
  if (is_enough()) return static_cast<long>(done_);
  if (socket_.pending_error != 0) return done_ != 0 ? static_cast<long>(done_) : take_pending_error(socket_);
  if (e.peer_gone) {
    if (e.consumer.peek(link.in).size() != 0 || take_held_of_dead(socket_, link)) return kChanged;
    e.paths.stop_reading();
    return kChanged;
  }
  if (!kernel_has_news()) return again();
  const long there = look_in_kernel();
  const bool heard = hear_channel(socket_, link);
  if (heard || e.consumer.peek(link.in).size() != 0 || e.consumer.broken() != shm::Refusal::kNone) {
    keep(there);
    return kChanged;
  }
  if (there == kAgain) return again();
  if (there == 0) release_if_ended(socket_, link);
  if (there == 0 && (is_end_of_dead() || take_held_of_dead(socket_, link))) return kChanged;
  if (there == 0 || (there > 0 && total_ == 0)) return static_cast<long>(done_);
  if (there < 0) return failed(there);
  const std::size_t before = done_;
  keep(ask(guard, std::min<std::size_t>(static_cast<std::size_t>(there), total_ - done_)));
  return done_ != before ? static_cast<long>(done_) : kChanged;  // the other end wrote past the library
}

// No byte of the kernel that lies after a CUT may be taken before that CUT was read. Bytes that the kernel has at one
// moment, if no message was read after that moment, were written before any CUT. So as many bytes may be read, whatever
// comes meanwhile. The same holds for the kernel's end, and for an error.
long LocalReceiving::take_from_kernel(Guard& guard) {
  if (socket_.pending_error != 0) {
    if (goes_elsewhere(kAgain)) return kChanged;
    const bool behind_bytes = total_ != done_ && look_in_kernel() > 0;
    if (!behind_bytes) return done_ != 0 ? static_cast<long>(done_) : take_pending_error(socket_);
  }
  if (asked_ && !kernel_has_news()) return again();
  if (done_ != 0 && is_at_urgent_mark()) return static_cast<long>(done_);
  asked_ = true;
  const std::size_t wanted = total_ - done_;
  // A peek that finds nothing in the ring continues with what the kernel has after it.
  const bool whole = peeks() && end().paths.is_bounded() && end().paths.is_all_of_ring(0, end().consumer);
  auto most = whole ? wanted : static_cast<std::size_t>(end().paths.from_kernel(wanted));
  const bool unbounded = may_be_cut();
  if (unbounded) {
    const long there = look_in_kernel();
    if (goes_elsewhere(there)) return kChanged;
    if (there == kAgain && passes_urgent_byte(guard)) return kChanged;
    if (there == kAgain) return again();
    if (there < 0) return failed(there);
    if (there == 0 && is_end_of_dead()) return kChanged;
    if (there == 0) return static_cast<long>(done_);
    most = std::min(most, static_cast<std::size_t>(there));
  }
  const std::uint32_t version = socket_.readiness.version.load(std::memory_order_relaxed);
  const long r = ask(guard, most);
  // The lock was released: signals from meanwhile must be looked at.
  const bool signalled = socket_.readiness.version.load(std::memory_order_relaxed) != version;
  if (r == kAgain) return unbounded || signalled ? kChanged : again();
  if (r == failure(Refusal::kBadPointer)) return failed(r);
  if (unbounded && r <= 0 && most != 0) {  // another reader has taken the bytes: the messages must be read first
    keep(r);
    return kChanged;
  }
  // If bytes before CUT are missing, nothing follows them: a reset has lost them, and another call was told of it.
  if (r < 0) return failed(r);
  if (r == 0 && (most != 0 || wanted == 0)) return static_cast<long>(done_);
  if (peeks() && done_ < total_ && end().paths.is_all_of_kernel(done_)) peek_behind(guard);
  if (peeks()) return peeked();
  if (done_ == total_ || (done_ >= target() && end().paths.rx() == Rx::kKernel)) return static_cast<long>(done_);
  asked_ = false;
  return kChanged;
}

// A peek of both carriers. Its bytes stay the result if the wait for more ends without success.
long LocalReceiving::peeked() {
  const auto ended = [&] {
    const int number = kernel_half_state(socket_).number;
    return socket_.pending_error != 0 || socket_.has(kShutReceive) ||
           (os::poll_now(number, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  };
  if (done_ >= target() || ended()) return static_cast<long>(done_);
  // The lock may have been released: signals from meanwhile must be looked at.
  return others_version() != began_ ? kChanged : again();
}

// Peeks at the ring's bytes after CUT.
void LocalReceiving::peek_behind(Guard& guard) {
  const LocalLink* const link = local_link(socket_);
  if (link == nullptr) return;
  shm::Consumer& consumer = end().consumer;
  const shm::Parts<const std::byte> parts = consumer.peek(link->in, total_ - done_);
  const std::size_t bytes = end().paths.from_ring(std::min(parts.size(), total_ - done_), consumer);
  if ((flags_ & MSG_TRUNC) == 0 && !copy_out(guard, parts, bytes)) return;
  done_ += bytes;
}

// If the kernel has news, it may be bytes, or something that comes before them.
bool LocalReceiving::is_enough() const {
  return (done_ == total_ && total_ != 0) || (done_ >= target() && !kernel_has_news());
}

bool LocalReceiving::may_be_cut() const {
  if (end().stage == Stage::kPairing) return true;
  const LocalLink* const link = paired_link(socket_);
  return link != nullptr && link->channel.is_open() && end().paths.may_be_cut();
}

// Returns at least so many bytes as are there, 0 at the end, or a failure. If SIOCINQ finds none, some may have come
// since, or lie after an urgent byte. MSG_TRUNC counts them in the same call that finds them, so that a complete
// message is read as a whole.
long LocalReceiving::look_in_kernel() {
  constexpr std::size_t kMost = 1U << 30;
  const auto most = static_cast<long>(std::clamp<std::size_t>(total_ - done_, 1, kMost));
  const bool takes = !peeks() && total_ != 0;
  return ask_kernel_at_once([most, takes](int number) -> long {
    int unread = 0;
    if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&unread)) == 0 && unread > 0) return unread;
    const long r = os::call(SYS_recvfrom, number, 0, most, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT, 0, 0);
    // An end or an error after an urgent byte: only a read gets past that byte, and clears POLLPRI.
    if (r <= 0 && r != -EAGAIN && takes) os::call(SYS_recvfrom, number, 0, 1, MSG_TRUNC | MSG_DONTWAIT, 0, 0);
    return r;
  });
}

// A process that dies with bytes unread resets its connections. The kernel does not know of the ring's bytes, and sends
// a FIN when it closes the socket. The channel ends at the same moment, so this waits for it. It also waits if bytes
// are held back, which the kernel would send at an end. True: the peer has died; the reset was made, or the bytes were
// sent.
bool LocalReceiving::is_end_of_dead() {
  constexpr timespec kInTheSameMoment{0, 5'000'000};
  LocalLink* const link = paired_link(socket_);
  if (link == nullptr || is_peer_shut(*link)) return false;
  if (!is_unread_by_peer(socket_, *link) && (!link->channel.is_open() || end().producer.held() == 0)) return false;
  pollfd channel{link->channel.descriptor(), POLLRDHUP, 0};
  os::call(SYS_ppoll, os::address(&channel), 1, os::address(&kInTheSameMoment), 0, 8);
  if ((channel.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) return false;
  hear_channel(socket_, *link);
  return true;
}

// A call that has bytes ends before an urgent byte, as in the kernel: tcp(7), SIOCATMARK.
bool LocalReceiving::is_at_urgent_mark() {
  return ask_kernel_at_once([](int number) -> long { return kernel_is_at_mark(number) ? 1 : 0; }) == 1;
}

// A read passes the urgent byte before which it stands, even if nothing follows. The sender of such a byte has left the
// ring, so no CUT comes. True: bytes had come after it.
bool LocalReceiving::passes_urgent_byte(Guard& guard) {
  if (peeks() || total_ == done_ || !kernel_is_at_mark(kernel_half_state(socket_).number)) return false;
  const std::size_t before = done_;
  keep(ask(guard, total_ - done_));
  return done_ != before;
}

// Reads the messages that were sent before the kernel's `answer`. True: the stream is no longer where CUT may move it.
bool LocalReceiving::goes_elsewhere(long answer) {
  if (!may_be_cut()) return false;
  if (end().stage == Stage::kPaired) hear_channel(socket_, *local_link(socket_));
  if (may_be_cut()) return false;
  keep(answer);
  asked_ = false;
  return true;
}

// Keeps an error that the kernel reports only once, until the bytes before it are read. A bad pointer belongs to the
// call.
void LocalReceiving::keep(long error) {
  if (error < 0 && error != kAgain && error != failure(Refusal::kBadPointer))
    socket_.pending_error = static_cast<std::uint8_t>(-error);
}

// Reads from the kernel's connection into the rest of the program's buffers.
long LocalReceiving::ask(Guard& guard, std::size_t most) {
  const Rest rest(data_, done_, most);
  const auto read = [&](int number) {
    msghdr header{};
    header.msg_iov = const_cast<iovec*>(rest.parts().data());
    header.msg_iovlen = rest.parts().size();
    return kernel_result(kernel->recvmsg(number, &header, (flags_ & ~MSG_WAITALL) | MSG_DONTWAIT));
  };
  long r = 0;
  {
    const ReadsInKernel reads(socket_);
    r = ask_kernel(guard, read);
  }
  if (r > 0) {
    done_ += static_cast<std::size_t>(r);
    if (!peeks()) note_read_from_kernel(socket_, static_cast<std::uint64_t>(r));
  }
  return r;
}

long LocalReceiving::failed(long error) {
  if (done_ == 0) return error;
  keep(error);
  return static_cast<long>(done_);
}

}  // namespace

namespace {

// TCP_INQ; tcp_inq_hint() of Linux: 1 also stands for the peer's end.
void report_unread(Guard& guard, Socket& socket, int fd, std::size_t room, Message& message) {
  int unread = 0;
  if (const std::optional<long> ours = local_unread(socket, fd); ours.has_value())
    unread = static_cast<int>(*ours);
  else
    os::call(SYS_ioctl, fd, SIOCINQ, os::address(&unread));
  if (unread == 0 && !socket.has(kShutReceive) && (stream_bits(socket) & kPeerShut) != 0) unread = 1;
  message.control_length = room;
  report_stream(socket, {}, guard.context().now, static_cast<std::size_t>(unread), message);
}

}  // namespace

long local_receive(Socket& socket, int fd, Message& message, int flags) {
  const bool asks_kernel = (flags & (MSG_ERRQUEUE | MSG_OOB)) != 0;
  const std::size_t room = message.control_length;
  std::optional<InKernel> in_kernel;
  std::optional<Patience> patience;
  LocalReceiving receiving(socket, message.data, flags);
  {
    Guard guard(shard());
    if (!socket.alive) return failure(Refusal::kBadDescriptor);
    local_count_call(guard, socket, fd);
    const Stage stage = end_of(socket).stage;
    const bool gone = local_give_up(guard, socket);
    if (gone || asks_kernel || stage == Stage::kLooking || stage == Stage::kNone) {
      in_kernel.emplace(end_of(socket).reads_in_kernel);
    } else {
      watch_kernel_half(socket, fd);
      const long r = receiving.attempt(guard);
      if (r != kAgain) {
        message.name_length = 0;
        message.control_length = 0;
        message.flags = 0;
        if (r >= 0 && socket.has(kWantInq)) report_unread(guard, socket, fd, room, message);
        return r;
      }
      patience = socket_patience(guard, socket.receive_timeout_ms);
      patience->block = !non_blocking(socket, flags);
      receiving.ration(!patience->block);
      hold(socket);
    }
  }
  if (in_kernel.has_value()) {
    const long r = kernel_read(fd, message, flags);
    if (!has_kernel_half(socket)) return r;
    const Guard guard(shard());
    if (KernelHalf* const half = kernel_half(socket); half != nullptr && half->watched) doubt_kernel_half(*half);
    return r;
  }
  Pin pin(socket);
  message.name_length = 0;
  message.control_length = 0;
  message.flags = 0;
  const long r = wait_result(wait_on(receiving, *patience), receiving.done());
  if (r < 0 || !socket.has(kWantInq)) return r;
  Guard guard(shard());
  report_unread(guard, socket, fd, room, message);
  return r;
}

}  // namespace bypass::socket
