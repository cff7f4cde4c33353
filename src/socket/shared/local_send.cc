// Sends on a connection within the host, and ends it: into the ring, or by a call that waits in the kernel.
// Tests: tests/system/local.py, tests/system/local_room.py.
#include "os/io_cursor.h"
#include "socket/kernel_message.h"
#include "socket/shared/local_condition.h"
#include "socket/stream/stream_send.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::CarrierSwitch::Tx;

namespace {

/// A large send is published in pieces, so that the reader copies out the first while the next is copied in.
constexpr std::size_t kPiece = std::size_t{64} << 10;

class LocalSending : public LocalCondition {
 public:
  LocalSending(Socket& socket, std::size_t total, std::size_t done, bool more)
      : LocalCondition(socket, kOut), total_(total), done_(done), more_(more) {}

  long attempt(Guard& guard) final;
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] bool has_transferred() const final { return done_ != 0; }

 protected:
  ~LocalSending() = default;
  /// Fills the first `bytes` of the room. Returns how many, 0 at the source's end, or a failure.
  virtual long copy_in(const shm::Parts<std::byte>& room, std::size_t bytes) = 0;
  [[nodiscard]] virtual bool slow_source() const { return false; }

 private:
  long fill(Guard& guard, LocalLink& link);

  std::size_t total_, done_;
  bool more_;  // MSG_MORE
};

// Returns kChanged if the rest must go over the kernel.
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
    if (socket_.has(kShutSend) || half.error || half.hung_up) return kChanged;  // the kernel has the answer
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
    release_held(socket_, link);  // as tcp_sendmsg_locked() does before it waits
    want_room(socket_, link);
    return producer.room(link.out, 1).size() == 0 ? kAgain : fill(guard, link);
  }
  const std::uint64_t ticks = Clock::ticks();
  long n = 0;
  {
    std::optional<OutsideLock> outside;
    if (bytes > kCopyInLock || slow_source()) outside.emplace(guard, socket_, kWriting);
    n = copy_in(room, bytes);
  }
  if (n > 0) publish_or_hold(socket_, link, static_cast<std::size_t>(n), more_, ticks);
  return n;
}

class SendingBytes final : public LocalSending {
 public:
  SendingBytes(Socket& socket, std::span<const iovec> data, std::size_t done, bool more)
      : LocalSending(socket, total_bytes(data), done, more), cursor_(data) {
    cursor_.skip(done);
  }

 private:
  long copy_in(const shm::Parts<std::byte>& room, std::size_t bytes) override {
    const std::size_t first = std::min(room.part[0].size(), bytes);
    const bool copied = cursor_.read(room.part[0].data(), first) && cursor_.read(room.part[1].data(), bytes - first);
    return copied ? static_cast<long>(bytes) : failure(Refusal::kBadPointer);
  }
  IoCursor cursor_;
};

class SendingFile final : public LocalSending {
 public:
  SendingFile(Socket& socket, int in_fd, off_t* offset, std::size_t count, std::size_t done)
      : LocalSending(socket, count, done, false), in_fd_(in_fd), offset_(offset) {}

 private:
  long copy_in(const shm::Parts<std::byte>& room, std::size_t bytes) override {
    const std::size_t n = std::min(room.part[0].size(), bytes);
    return read_file(in_fd_, offset_, room.part[0].data(), n);
  }
  [[nodiscard]] bool slow_source() const override { return true; }

  int in_fd_;
  off_t* offset_;
};

// The peer's buffer has changed: a writer with a small buffer may have to be bounded by it.
void note_other_buffer(Guard& guard, Socket& socket, LocalLink& link, int fd) {
  if (end_of(socket).most_unsent == 0) return bound_ring(socket, link);
  if (!bound_anew(socket, link, fd)) local_leave(guard, socket);
}

enum class Way : std::uint8_t { kKernel, kRing };

/// Lock held.
Way way_of(Guard& guard, Socket& socket, int fd, bool more) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired) return Way::kKernel;
  LocalLink* const link = local_link(socket);
  if (link == nullptr || socket.has(kShutSend)) return Way::kKernel;
  watch_kernel_half(socket, fd);
  if (kernel_has_news(socket)) hear_channel(socket, *link);  // the peer may have died
  if (is_paired(socket)) settle(socket, *link);
  if (is_paired(socket) && has_other_buffer(*link)) note_other_buffer(guard, socket, *link, fd);
  if (!is_paired(socket)) return Way::kKernel;
  if (end.paths.tx() == Tx::kReturning) return Way::kRing;
  return try_cut(socket, *link, more) ? Way::kRing : Way::kKernel;
}

/// Sends by the ring. Returns kChanged if the rest must go over the kernel.
long run(Guard& guard, Socket& socket, LocalSending& sending, int flags, std::optional<Patience>& patience) {
  const long r = sending.attempt(guard);
  if (r != kAgain) return r;
  patience = socket_patience(guard, socket.send_timeout_ms);
  patience->block = !non_blocking(socket, flags);
  sending.ration(!patience->block);
  hold(socket);
  return kAgain;
}

/// `make(done)` makes the sending; `in_kernel(done)` makes the kernel's call for the rest. `done`: bytes sent so far.
template <typename MakeSending, typename KernelCall>
long send_either_way(Socket& socket, int fd, int flags, MakeSending make, KernelCall in_kernel) {
  const bool more = (flags & MSG_MORE) != 0;
  std::size_t done = 0;
  if (is_kernel_look_due(Clock::ticks())) look_at_kernel_halves(shard().clock().now(), true);
  for (;;) {
    std::optional<Patience> patience;
    std::optional<InKernel> waiting;
    long r = kChanged;
    auto sending = make(done);
    {
      Guard guard(shard());
      if (!socket.alive) return failure(Refusal::kBadDescriptor);
      local_count_call(guard, socket, fd);
      // The kernel reports it to the first caller only, and has reported it to us.
      if (done == 0 && socket.pending_error != 0) return take_pending_error(socket);
      if (way_of(guard, socket, fd, more) == Way::kRing)
        r = run(guard, socket, sending, flags, patience);
      else
        (void)local_give_up(guard, socket);
      if (r == kChanged) {
        waiting.emplace(end_of(socket).sends_in_kernel);
        end_of(socket).more_in_kernel = more;
      }
    }
    if (patience.has_value()) {
      Pin pin(socket);
      r = wait_on(sending, *patience);
    }
    done = sending.done();
    if (r != kChanged) return wait_result(r, done);
    if (!waiting.has_value()) continue;  // the path changed during the wait
    r = in_kernel(done);
    if (r == kAgain && has_kernel_half(socket)) {
      const Guard guard(shard());
      want_kernel_out(socket);
    }
    return r < 0 ? wait_result(r, done) : r + static_cast<long>(done);
  }
}

bool only_in_kernel(const Message& message, int flags) {
  return (flags & (MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)) != 0 || message.control_length != 0;
}

}  // namespace

long local_send(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe) {
  sigpipe = false;
  if (only_in_kernel(message, flags)) {
    Guard guard(shard());
    local_leave(guard, socket);
  }
  const auto make = [&](std::size_t done) { return SendingBytes(socket, message.data, done, (flags & MSG_MORE) != 0); };
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
    sigpipe = false;  // the kernel has raised it already
    return r;
  };
  return send_either_way(socket, fd, 0, make, in_kernel);
}

// Bytes that go back to the kernel are sent before the FIN.
long local_shutdown(Socket& socket, int fd, int how) {
  Guard guard(shard());
  LocalEnd& end = end_of(socket);
  if (LocalLink* const link = paired_link(socket)) hear_channel(socket, *link);
  if (LocalLink* const link = paired_link(socket)) release_if_answered(socket, *link);
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
  if (link != nullptr && socket.has(kShutSend) && !end.fin_waits) say_shut(*link, shut_word(socket));
  const long r = kernel_result(kernel->shutdown(fd, how));
  if (link != nullptr && !socket.has(kReading)) leave_if_shut(socket, *link);
  if (r == 0) signal(socket, kEverything);
  return r;
}

}  // namespace bypass::socket
