#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "socket/io_cursor.h"
#include "socket/kernel_message.h"
#include "socket/local_path.h"
#include "socket/os.h"
#include "socket/readiness.h"
#include "socket/socket_wait.h"
#include "socket/stream_send.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::Switch::Tx;
using Rx = shm::Switch::Rx;

namespace {

/// A large send is told of in pieces, so that the reader copies out the first while the next is copied in.
constexpr std::size_t kPiece = std::size_t{64} << 10;
/// Vectors of one question to the kernel: what is beyond waits for the next.
constexpr std::size_t kVectors = 16;
/// Of an attempt: the path has changed, begin again.
constexpr long kChanged = -1'000'000;

/// A call that may wait in the kernel, where nobody but a signal reaches it. Goes with it, also on cancellation.
class InKernel {
 public:
  /// Lock held.
  explicit InKernel(std::uint16_t& count) : count_(count) { count_++; }
  ~InKernel() {
    const Guard guard(shard());
    count_--;
  }
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;

 private:
  std::uint16_t& count_;
};

/// A read that the kernel answers at once: nobody, in another process of the family neither, counts what has been read
/// from it meanwhile.
class ReadsInKernel : Busy {
 public:
  explicit ReadsInKernel(Socket& socket) : Busy(socket, kReading) {}
};

/// The part of `data` behind its first `done` bytes, at most `most` of them.
class Rest {
 public:
  Rest(std::span<const iovec> data, std::size_t done, std::size_t most) {
    for (const iovec& v : data) {
      if (done >= v.iov_len) {
        done -= v.iov_len;
        continue;
      }
      const std::size_t n = std::min(v.iov_len - done, most);
      if (n == 0 || count_ == parts_.size()) break;
      parts_[count_++] = {static_cast<std::byte*>(v.iov_base) + done, n};
      most -= n;
      done = 0;
    }
  }
  [[nodiscard]] std::span<const iovec> parts() const { return {parts_.data(), count_}; }

 private:
  std::array<iovec, kVectors> parts_;
  std::size_t count_ = 0;
};

bool kernel_has_news(const Socket& socket) {
  const KernelHalf& half = kernel_half_state(socket);
  return half.in || half.error || half.hung_up;
}

bool kernel_is_at_mark(int number) {
  int at = 0;
  return os::call(SYS_ioctl, number, SIOCATMARK, os::address(&at)) == 0 && at != 0;
}

// With both halves shut the kernel answers what still comes with RST; so it has to come there.
void leave_if_shut(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (!socket.has(kShutSend) || !socket.has(kShutReceive) || end.peer_gone) return;
  if (end.paths.is_ending() || end.paths.has_stopped_reading() || end.paths.is_bounded() || end.resume_heard) return;
  if (end.paths.rx() == Rx::kKernel && end.consumer.peek(link.in).size() != 0) return;  // CUT is on its way
  if (!shm::claim_stop(link.in, end.paths.resumes_heard())) return;
  // What the ring has by now came before, and is still read.
  const std::uint64_t all = end.consumer.consumed() + end.consumer.peek(link.in, link.in.size).size();
  if (!say(link, shm::SwitchKind::kStop, all)) return shm::take_back_stop(link.in);
  all == end.consumer.consumed() ? end.paths.stop_reading() : end.paths.stop_reading_behind(all);
}

/// What both directions have in common: no wire is needed before there is memory to look at.
class LocalCondition : public DualCondition {
 public:
  using DualCondition::DualCondition;
  [[nodiscard]] bool needs_wire() const final { return end_of(socket_).stage == Stage::kPaired; }

 protected:
  ~LocalCondition() = default;
  [[nodiscard]] LocalEnd& end() const { return end_of(socket_); }
  [[nodiscard]] bool kernel_has_news() const { return socket::kernel_has_news(socket_); }
};

// --- Receiving

class LocalReceiving final : public LocalCondition {
 public:
  LocalReceiving(Socket& socket, std::span<const iovec> data, int flags)
      : LocalCondition(socket, kIn), data_(data), flags_(flags), total_(total_bytes(data)) {}

  long attempt(Guard& guard) override;
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] bool has_moved() const final { return done_ != 0; }

 private:
  [[nodiscard]] std::size_t target() const {
    const std::size_t least = (flags_ & MSG_WAITALL) != 0 ? total_ : socket_.low_water;
    return std::clamp<std::size_t>(least, 1, std::max<std::size_t>(total_, 1));
  }
  [[nodiscard]] bool peeks() const { return (flags_ & MSG_PEEK) != 0; }
  long step(Guard& guard);
  long take_from_ring(Guard& guard, LocalLink& link);
  std::size_t copy_out(Guard& guard, const shm::Parts<const std::byte>& parts, std::size_t bytes);
  long ring_is_empty(Guard& guard, LocalLink& link);
  long take_from_kernel(Guard& guard);
  long peeked();
  void peek_behind(Guard& guard);
  [[nodiscard]] bool is_enough() const;
  [[nodiscard]] bool may_be_cut() const;
  long look_in_kernel();
  bool is_at_urgent_mark();
  bool goes_elsewhere(long answer);
  long ask(Guard& guard, std::size_t most);
  void keep(long error);
  long failed(long error);

  std::span<const iovec> data_;
  int flags_;
  std::size_t total_, done_ = 0;
  std::uint32_t began_ = 0;  // the readiness' version when a look began
  bool asked_ = false;
};

long LocalReceiving::attempt(Guard& guard) {
  for (;;) {
    wait_for_copy(guard, kReading);
    if (peeks()) {  // anew
      done_ = 0;
      asked_ = false;
      began_ = socket_.readiness.version.load(std::memory_order_relaxed);
    }
    const long r = step(guard);
    if (r == kAgain && done_ >= target()) return static_cast<long>(done_);
    if (r != kChanged) return r;
  }
}

// Where bytes of both carriers are there, a call takes of both: that it got less than it asked for tells a program, as
// libuv, that there was no more, and with EPOLLHUP that this was the end.
long LocalReceiving::step(Guard& guard) {
  if (end().stage != Stage::kPaired) return take_from_kernel(guard);
  LocalLink* const link = local_link(socket_);
  if (link == nullptr) return failure(Error::kReset);  // the process that had it mapped is gone
  settle(socket_, *link);
  if (!is_paired(socket_)) return kChanged;
  if (end().paths.is_skipping()) return again();  // of the kernel's, its first bytes are still on their way
  return end().paths.rx() == Rx::kRing ? take_from_ring(guard, *link) : take_from_kernel(guard);
}

long LocalReceiving::take_from_ring(Guard& guard, LocalLink& link) {
  shm::Consumer& consumer = end().consumer;
  // First: it may find, and signal, what has come by now, and again() must not forget that.
  touch_link(socket_, link);
  const shm::Parts<const std::byte> parts = consumer.peek(link.in, std::max<std::size_t>(total_ - done_, 1));
  if (consumer.broken() != shm::Refusal::kNone) {
    break_link(socket_, shm::to_string(consumer.broken()));
    return kChanged;
  }
  const std::size_t bytes = end().paths.from_ring(std::min(parts.size(), total_ - done_), consumer);
  if (bytes == 0) return total_ == 0 && parts.size() != 0 ? 0 : ring_is_empty(guard, link);
  const bool dropped = (flags_ & MSG_TRUNC) != 0;
  const std::size_t before = done_;
  if (!dropped) copy_out(guard, parts, bytes);
  done_ = before + bytes;
  if (peeks()) {
    if (done_ < total_ && end().paths.is_all_of_ring(bytes, consumer) && !is_at_urgent_mark())
      (void)ask(guard, total_ - done_);
    return peeked();
  }
  if (consumer.consume(link.in, bytes)) wake_peer(link);
  return is_enough() && !end().paths.is_all_of_ring(0, consumer) ? static_cast<long>(done_) : kChanged;
}

// A long copy lets go of the lock; the bytes stay where they are until they are consumed.
std::size_t LocalReceiving::copy_out(Guard& guard, const shm::Parts<const std::byte>& parts, std::size_t bytes) {
  std::optional<OutsideLock> outside;
  if (bytes > kCopyInLock) outside.emplace(guard, socket_, kReading);
  IoCursor cursor(data_);
  cursor.skip(done_);
  const std::size_t first = std::min(parts.part[0].size(), bytes);
  cursor.write(parts.part[0].data(), first);
  cursor.write(parts.part[1].data(), bytes - first);
  return bytes;
}

// Bytes, then what the kernel's connection says: its end, an error, or that the stream goes on there. Whatever the peer
// has put into the ring before that, it is there by the time the kernel says so.
long LocalReceiving::ring_is_empty(Guard& guard, LocalLink& link) {
  LocalEnd& e = end();
  if (end_of_ring_read(socket_, link)) return kChanged;
  if (e.resume_heard) return again();  // another thread asks the kernel, and signals
  leave_if_shut(socket_, link);
  if (e.paths.rx() != Rx::kRing) return kChanged;
  if (is_enough()) return static_cast<long>(done_);
  if (socket_.pending_error != 0) return done_ != 0 ? static_cast<long>(done_) : take_pending_error(socket_);
  if (e.peer_gone) {
    if (e.consumer.peek(link.in).size() != 0) return kChanged;
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
  if (there == 0 || (there > 0 && total_ == 0)) return static_cast<long>(done_);
  if (there < 0) return failed(there);
  const std::size_t before = done_;
  (void)ask(guard, std::min<std::size_t>(static_cast<std::size_t>(there), total_ - done_));
  return done_ != before ? static_cast<long>(done_) : kChanged;  // written past us at the other end
}

// Nothing of the kernel's that lies behind a CUT may be taken before that is heard. What the kernel has at one moment,
// with nothing said that is heard after it, was written before any CUT: so many bytes may be asked for, whatever comes
// meanwhile. The same with its end, and with an error.
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
  auto most = static_cast<std::size_t>(end().paths.from_kernel(wanted));
  const bool unbounded = may_be_cut();
  if (unbounded) {
    const long there = look_in_kernel();
    if (goes_elsewhere(there)) return kChanged;
    if (there == kAgain) return again();
    if (there < 0) return failed(there);
    if (there == 0) return static_cast<long>(done_);
    most = std::min(most, static_cast<std::size_t>(there));
  }
  const std::uint32_t version = socket_.readiness.version.load(std::memory_order_relaxed);
  const long r = ask(guard, most);
  // The lock was let go of: what was signalled meanwhile is to be looked at.
  const bool signalled = socket_.readiness.version.load(std::memory_order_relaxed) != version;
  if (r == kAgain) return unbounded || signalled ? kChanged : again();
  if (unbounded && r <= 0 && most != 0) {  // another has taken what was there: what follows is to be heard of first
    keep(r);
    return kChanged;
  }
  // With bytes before CUT missing (a reset has lost them, and another call was told of it), nothing follows them.
  if (r < 0) return failed(r);
  if (r == 0 && (most != 0 || wanted == 0)) return static_cast<long>(done_);
  if (peeks() && done_ < total_ && end().paths.is_all_of_kernel(done_)) peek_behind(guard);
  if (peeks()) return peeked();
  if (done_ == total_ || (done_ >= target() && end().paths.rx() == Rx::kKernel)) return static_cast<long>(done_);
  asked_ = false;
  return kChanged;
}

// Of both carriers. What there is stays the result, should the wait for more end without it.
long LocalReceiving::peeked() {
  const auto ended = [&] {
    const int number = kernel_half_state(socket_).number;
    return socket_.pending_error != 0 || end().peer_gone || socket_.has(kShutReceive) ||
           (os::poll_now(number, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  };
  if (done_ >= target() || ended()) return static_cast<long>(done_);
  // The lock may have been let go of: what was signalled meanwhile is to be looked at.
  return socket_.readiness.version.load(std::memory_order_relaxed) != began_ ? kChanged : again();
}

// What lies in the ring behind CUT.
void LocalReceiving::peek_behind(Guard& guard) {
  const LocalLink* const link = local_link(socket_);
  if (link == nullptr) return;
  shm::Consumer& consumer = end().consumer;
  const shm::Parts<const std::byte> parts = consumer.peek(link->in, total_ - done_);
  const std::size_t bytes = end().paths.from_ring(std::min(parts.size(), total_ - done_), consumer);
  if ((flags_ & MSG_TRUNC) == 0) copy_out(guard, parts, bytes);
  done_ += bytes;
}

// Where the kernel has news, they may be bytes, or what is to be heard before them.
bool LocalReceiving::is_enough() const {
  return (done_ == total_ && total_ != 0) || (done_ >= target() && !kernel_has_news());
}

bool LocalReceiving::may_be_cut() const {
  if (end().stage == Stage::kPairing) return true;
  const LocalLink* const link = paired_link(socket_);
  return link != nullptr && link->channel.is_open() && end().paths.may_be_cut();
}

// Bytes, so many at least; 0 at its end; or a failure.
long LocalReceiving::look_in_kernel() {
  return ask_kernel_at_once([](int number) -> long {
    int unread = 0;
    if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&unread)) == 0 && unread > 0) return unread;
    std::byte first{};  // behind an urgent one, perhaps
    return os::call(SYS_recvfrom, number, os::address(&first), 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);
  });
}

// A call that has bytes ends in front of an urgent one, as in the kernel: tcp(7), SIOCATMARK.
bool LocalReceiving::is_at_urgent_mark() {
  return ask_kernel_at_once([](int number) -> long { return kernel_is_at_mark(number) ? 1 : 0; }) == 1;
}

// Hears what was said before the kernel's `answer`. True: the stream is not, or no longer, where CUT may move it.
bool LocalReceiving::goes_elsewhere(long answer) {
  if (!may_be_cut()) return false;
  if (end().stage == Stage::kPaired) hear_channel(socket_, *local_link(socket_));
  if (may_be_cut()) return false;
  keep(answer);
  return true;
}

// An error that the kernel tells once, for when the bytes before it have been read.
void LocalReceiving::keep(long error) {
  if (error < 0 && error != kAgain) socket_.pending_error = static_cast<std::uint8_t>(-error);
}

// Of the kernel's connection, into the rest of the program's room.
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

// --- Sending

class LocalSending : public LocalCondition {
 public:
  LocalSending(Socket& socket, std::size_t total, std::size_t done)
      : LocalCondition(socket, kOut), total_(total), done_(done) {}

  long attempt(Guard& guard) final;
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] bool has_moved() const final { return done_ != 0; }

 protected:
  ~LocalSending() = default;
  /// Fills the first `bytes` of the room: how many, 0 at the source's end, or a failure.
  virtual long copy_in(const shm::Parts<std::byte>& room, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool slow_source() const { return false; }

 private:
  long fill(Guard& guard, LocalLink& link);

  std::size_t total_, done_;
};

// kChanged: the rest is the kernel's.
long LocalSending::attempt(Guard& guard) {
  for (;;) {
    wait_for_copy(guard, kWriting);
    LocalLink* const link = local_link(socket_);
    if (link == nullptr || end().stage != Stage::kPaired) return kChanged;
    if (shm::is_reader_stopping(link->out)) hear_channel(socket_, *link);
    if (is_paired(socket_)) settle(socket_, *link);
    if (!is_paired(socket_) || end().paths.tx() == Tx::kKernel) return kChanged;
    if (end().paths.tx() == Tx::kReturning) {
      pump_return(socket_, *link);
      if (end().paths.tx() == Tx::kReturning) return again();
      continue;
    }
    const KernelHalf& half = kernel_half_state(socket_);
    if (socket_.has(kShutSend) || half.error || half.hung_up) return kChanged;  // the kernel knows what to say
    if (done_ == total_) return static_cast<long>(done_);
    const long r = fill(guard, *link);
    if (r == kAgain) return again();
    if (r <= 0) return done_ != 0 || r == 0 ? static_cast<long>(done_) : r;
    done_ += static_cast<std::size_t>(r);
  }
}

long LocalSending::fill(Guard& guard, LocalLink& link) {
  shm::Producer& producer = end().producer;
  touch_link(socket_, link);
  const std::size_t wanted = std::min(total_ - done_, kPiece);
  const shm::Parts<std::byte> room = producer.room(link.out, wanted);
  if (producer.broken() != shm::Refusal::kNone) {
    break_link(socket_, shm::to_string(producer.broken()));
    return failure(Error::kReset);
  }
  const std::size_t bytes = std::min(room.size(), wanted);
  if (bytes == 0) {
    end().wants_room = true;
    link.seen_consumed = link.out.peer->consumed.load(std::memory_order_seq_cst);
    return producer.room(link.out, 1).size() == 0 ? kAgain : fill(guard, link);
  }
  long n = 0;
  {
    std::optional<OutsideLock> outside;
    if (bytes > kCopyInLock || slow_source()) outside.emplace(guard, socket_, kWriting);
    n = copy_in(room, bytes);
  }
  if (n > 0 && producer.publish(link.out, static_cast<std::size_t>(n))) wake_peer(link);
  return n;
}

class SendingBytes final : public LocalSending {
 public:
  SendingBytes(Socket& socket, std::span<const iovec> data, std::size_t done)
      : LocalSending(socket, total_bytes(data), done), cursor_(data) {
    cursor_.skip(done);
  }

 private:
  long copy_in(const shm::Parts<std::byte>& room, std::size_t bytes) override {
    const std::size_t first = std::min(room.part[0].size(), bytes);
    cursor_.read(room.part[0].data(), first);
    cursor_.read(room.part[1].data(), bytes - first);
    return static_cast<long>(bytes);
  }
  IoCursor cursor_;
};

class SendingFile final : public LocalSending {
 public:
  SendingFile(Socket& socket, int in_fd, off_t* offset, std::size_t count, std::size_t done)
      : LocalSending(socket, count, done), in_fd_(in_fd), offset_(offset) {}

 private:
  long copy_in(const shm::Parts<std::byte>& room, std::size_t bytes) override {
    const std::size_t n = std::min(room.part[0].size(), bytes);
    return read_file(in_fd_, offset_, room.part[0].data(), n);
  }
  [[nodiscard]] bool slow_source() const override { return true; }

  int in_fd_;
  off_t* offset_;
};

enum class Way : std::uint8_t { kKernel, kRing };

/// Lock held.
Way way_of(Socket& socket, int fd) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired) return Way::kKernel;
  LocalLink* const link = local_link(socket);
  if (link == nullptr || socket.has(kShutSend)) return Way::kKernel;
  watch_kernel_half(socket, fd);
  settle(socket, *link);
  if (!is_paired(socket)) return Way::kKernel;
  if (end.paths.tx() == Tx::kReturning) return Way::kRing;
  return try_cut(socket, *link) ? Way::kRing : Way::kKernel;
}

/// Runs a sending in the ring: kChanged when what is left is the kernel's.
long run(Guard& guard, Socket& socket, LocalSending& sending, int flags, std::optional<Patience>& patience) {
  const long r = sending.attempt(guard);
  if (r != kAgain) return r;
  patience = socket_patience(guard, socket.send_timeout_ms);
  patience->block = !non_blocking(socket, flags);
  sending.ration(!patience->block);
  hold(socket);
  return kAgain;
}

/// `make(done)` makes the sending, `in_kernel(done)` the kernel's call for what is left, with the bytes done so far.
template <typename MakeSending, typename KernelCall>
long send_either_way(Socket& socket, int fd, int flags, MakeSending make, KernelCall in_kernel) {
  std::size_t done = 0;
  for (;;) {
    std::optional<Patience> patience;
    std::optional<InKernel> waiting;
    long r = kChanged;
    auto sending = make(done);
    {
      Guard guard(shard());
      if (!socket.alive) return failure(Refusal::kBadDescriptor);
      local_count_call(guard, socket, fd);
      // The kernel tells it to whoever comes first, and has told us.
      if (done == 0 && socket.pending_error != 0) return take_pending_error(socket);
      if (way_of(socket, fd) == Way::kRing)
        r = run(guard, socket, sending, flags, patience);
      else
        (void)local_give_up(guard, socket);
      if (r == kChanged) waiting.emplace(end_of(socket).sends_in_kernel);
    }
    if (patience.has_value()) {
      Pin pin(socket);
      r = wait_on(sending, *patience);
    }
    done = sending.done();
    if (r != kChanged) return wait_result(r, done);
    if (!waiting.has_value()) continue;  // the path has changed while we waited
    r = in_kernel(done);
    if (r == kAgain && has_kernel_half(socket)) {
      const Guard guard(shard());
      want_kernel_out(socket, fd);
    }
    return r < 0 ? wait_result(r, done) : r + static_cast<long>(done);
  }
}

bool only_in_kernel(const Message& message, int flags) {
  return (flags & (MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)) != 0 || message.control_length != 0;
}

}  // namespace

long local_receive(Socket& socket, int fd, Message& message, int flags) {
  const bool asks_kernel = (flags & (MSG_ERRQUEUE | MSG_OOB)) != 0;
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
  const long r = wait_on(receiving, *patience);
  return wait_result(r, receiving.done());
}

long local_send(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe) {
  sigpipe = false;
  if (only_in_kernel(message, flags)) {
    Guard guard(shard());
    local_leave(guard, socket);
  }
  const auto make = [&](std::size_t done) { return SendingBytes(socket, message.data, done); };
  const auto in_kernel = [&](std::size_t done) -> long {
    if (done == 0) return kernel_write(fd, message, flags);
    const Rest rest(message.data, done, ~std::size_t{0});
    Message left = message;
    left.data = rest.parts();
    return kernel_write(fd, left, flags);
  };
  return send_either_way(socket, fd, flags, make, in_kernel);
}

long local_send_file(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe) {
  sigpipe = false;
  const auto make = [&](std::size_t done) { return SendingFile(socket, in_fd, offset, count, done); };
  const auto in_kernel = [&](std::size_t done) -> long {
    const long r = os::call(SYS_sendfile, fd, in_fd, os::address(offset), static_cast<long>(count - done));
    sigpipe = false;  // the kernel has raised it
    return r;
  };
  return send_either_way(socket, fd, 0, make, in_kernel);
}

// What goes back to the kernel goes first.
long local_shutdown(Socket& socket, int fd, int how) {
  Guard guard(shard());
  LocalEnd& end = end_of(socket);
  if (LocalLink* const link = paired_link(socket)) hear_channel(socket, *link);
  if (LocalLink* const link = paired_link(socket); link != nullptr && how != SHUT_RD)
    return_ring_before_end(socket, *link);
  if (how != SHUT_RD) socket.set(kShutSend);
  if (how != SHUT_WR) socket.set(kShutReceive);
  if (how != SHUT_RD && is_returning(socket)) {
    end.fin_waits = true;
    if (how == SHUT_WR) return 0;
    how = SHUT_RD;
  }
  LocalLink* const link = paired_link(socket);
  if (link != nullptr && how != SHUT_RD) say_shut(*link);
  const long r = kernel_result(kernel->shutdown(fd, how));
  if (link != nullptr && !socket.has(kReading)) leave_if_shut(socket, *link);
  if (r == 0) signal(socket, kEverything);
  return r;
}

namespace {

/// Acts on what the peer has said; `hears`: also on what has come by now. Null: no memory, or none any more.
LocalLink* settled_link(Socket& socket, bool hears) {
  if (LocalLink* const link = paired_link(socket); link != nullptr && hears) hear_channel(socket, *link);
  if (LocalLink* const link = paired_link(socket)) settle(socket, *link);
  return paired_link(socket);
}

std::uint64_t unread_in_ring(const LocalEnd& end, const LocalLink& link) {
  const std::uint64_t there = link.in.peer->produced.load(std::memory_order_seq_cst) - end.consumer.consumed();
  return end.paths.from_ring(std::min(there, link.in.size), end.consumer);
}

// Of what the kernel is to carry before the ring, some is still on its way there: the ring's cannot be read yet.
bool is_gap_before_ring(const LocalEnd& end, int in_kernel) {
  constexpr auto kAll = ~std::uint64_t{0};
  return end.paths.rx() == Rx::kKernel && static_cast<std::uint64_t>(in_kernel) < end.paths.from_kernel(kAll);
}

// Less than the low-water mark in each of the two carriers may be enough in both.
bool enough_in_both(const Socket& socket, const LocalLink& link, int number) {
  const LocalEnd& end = end_of(socket);
  int in_kernel = 0;
  if (!end.paths.is_bounded() && !end.paths.is_ending()) return false;
  if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&in_kernel)) != 0) return false;
  if (is_gap_before_ring(end, in_kernel)) return false;
  return static_cast<std::uint64_t>(in_kernel) + unread_in_ring(end, link) >= socket.low_water;
}

}  // namespace

std::optional<long> local_readable(Socket& socket, int fd) {
  Guard guard(shard());
  LocalEnd& end = end_of(socket);
  LocalLink* const link = settled_link(socket, kernel_has_news(socket) || end.paths.rx() == Rx::kKernel);
  if (link == nullptr) return std::nullopt;
  if (end.paths.is_skipping()) return 0;
  int in_kernel = 0;
  if (end.paths.rx() == Rx::kKernel && !end.paths.is_bounded()) return std::nullopt;
  if (os::call(SYS_ioctl, fd, SIOCINQ, os::address(&in_kernel)) != 0) return std::nullopt;
  if (is_gap_before_ring(end, in_kernel)) return in_kernel;
  const auto in_ring = static_cast<long>(unread_in_ring(end, *link));
  const bool to_the_ring = end.paths.rx() == Rx::kRing && in_ring != 0 && kernel_is_at_mark(fd);
  const bool both = end.paths.rx() == Rx::kKernel || (end.paths.is_ending() && !to_the_ring);
  return (both ? in_kernel : 0) + in_ring;
}

bool local_is_before_mark(Socket& socket, int fd) {
  if (!kernel_is_at_mark(fd)) return false;
  Guard guard(shard());
  LocalLink* const link = local_link(socket);
  LocalEnd& end = end_of(socket);
  if (link == nullptr || end.stage != Stage::kPaired) return false;
  settle(socket, *link);
  return is_paired(socket) && end.paths.rx() == Rx::kRing && unread_in_ring(end, *link) != 0;
}

std::uint32_t local_bits(const Socket& constant) {
  auto& socket = const_cast<Socket&>(constant);
  LocalEnd& end = end_of(socket);
  KernelHalf* const half = kernel_half(socket);
  if (half == nullptr || !half->watched) return 0;
  LocalLink* const link = settled_link(socket, end.paths.rx() == Rx::kRing && kernel_has_news(socket));
  const bool reads_ring = link != nullptr && end.paths.rx() == Rx::kRing;
  const bool writes_ring = link != nullptr && end.paths.tx() != Tx::kKernel;
  std::uint32_t bits = socket.pending_error != 0 ? kError | kIn : 0U;
  // An end whose edge may not have been heard yet.
  const bool shut = socket.has(kShutReceive | kShutSend) || (reads_ring && is_peer_shut(*link));
  if (!reads_ring || !writes_ring || shut || half->taking != 0 || half->in || half->error || half->hung_up) {
    const auto now = static_cast<std::uint32_t>(os::poll_now(half->number, POLLIN | POLLOUT | POLLRDHUP | POLLPRI));
    half->in = (now & POLLIN) != 0;
    half->error = (now & POLLERR) != 0;
    half->hung_up = (now & POLLHUP) != 0;
    bits |= now & (POLLRDHUP | POLLHUP | POLLERR | POLLPRI);
    if (half->in && (link == nullptr || !end.paths.is_skipping())) bits |= kIn;
    const bool ended = (now & (POLLHUP | POLLERR)) != 0 || socket.has(kShutSend);
    if ((now & POLLOUT) != 0 && (!writes_ring || ended)) bits |= kOut;
    if ((now & POLLOUT) == 0 && !writes_ring) want_kernel_out(socket, half->number);
  }
  if (reads_ring) {
    const std::uint64_t unread = end.paths.from_ring(
        link->in.peer->produced.load(std::memory_order_seq_cst) - end.consumer.consumed(), end.consumer);
    if (unread >= socket.low_water) bits |= kIn;
  }
  const bool short_of = (bits & kIn) == 0 && socket.low_water > 1;
  if (short_of && link != nullptr && is_paired(socket) && enough_in_both(socket, *link, half->number)) bits |= kIn;
  if (writes_ring && end.paths.tx() == Tx::kRing) {
    if (has_ring_room(socket, *link))
      bits |= kOut;
    else
      end.wants_room = true;
  }
  return bits;
}

}  // namespace bypass::socket
