// splice() between a pipe and a connection. What the kernel would move without a copy is read into the send ring, or
// written from the receive queue.
// Tests: tests/socket/stream_splice_test.cc.
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "os/errno_map.h"
#include "os/os.h"
#include "socket/stream/stream_receive.h"
#include "socket/stream/stream_send.h"

namespace bypass::socket {

namespace {

long bytes_in(int pipe) {
  int there = 0;
  const long r = kernel_result(kernel->ioctl(pipe, FIONREAD, &there));
  return r < 0 ? r : there;
}

class SendingPipe final : public Sending {
 public:
  SendingPipe(Socket& socket, int pipe, std::size_t count, bool more) : Sending(socket, count, more), pipe_(pipe) {}

 private:
  // Moves bytes from the pipe for which there is room: nothing leaves the pipe that the connection does not take.
  // (vmsplice copies from a pipe. It does not wait and is no cancellation point, so the bytes that it took are not
  // lost.)
  long copy_in(const tcp::Room& room, std::size_t bytes) override {
    const std::size_t first = std::min(room.part[0].size(), bytes);
    const std::array<iovec, 2> to = {iovec{room.part[0].data(), first}, iovec{room.part[1].data(), bytes - first}};
    const long r = os::call(SYS_vmsplice, pipe_, os::address(to.data()), to.size(), SPLICE_F_NONBLOCK);
    return r == -EAGAIN ? 0 : r;  // another reader has taken them
  }
  [[nodiscard]] bool slow_source() const override { return true; }

  int pipe_;
};

/// Returns 1: there are bytes; 0: no more will come; -EAGAIN, -EINTR.
long await_bytes(int pipe, bool waits) {
  pollfd item{pipe, POLLIN, 0};
  const timespec none{};
  const long ready = kernel_result(kernel->ppoll(&item, 1, waits ? nullptr : &none, nullptr));
  if (ready < 0) return ready;
  if ((item.revents & POLLIN) != 0) return 1;
  return ready == 0 ? -EAGAIN : 0;
}

class SplicingOut final : public Receiving {
 public:
  SplicingOut(Socket& socket, int pipe, std::size_t count) : Receiving(socket, count, 1, 0), pipe_(pipe) {}
  /// True if the pipe took nothing, because another writer has filled it.
  [[nodiscard]] bool is_full() const { return full_; }

 private:
  // Moves bytes for which the pipe has room: nothing leaves the connection that the pipe does not take. No cancellation
  // point.
  long copy_out(Spans from, std::size_t bytes) override {
    std::array<iovec, 16> parts;
    std::size_t n = 0, all = 0;
    for (; n < parts.size() && n < from.size() && all < bytes; n++) {
      const std::size_t length = std::min(from[n].size(), bytes - all);
      parts[n] = {const_cast<std::byte*>(from[n].data()), length};
      all += length;
    }
    const long r = write_some(std::span(parts).first(n));
    full_ = r == -EAGAIN;
    return full_ ? 0 : r;
  }
  [[nodiscard]] bool slow_sink() const override { return true; }

  // Some files that are pipes cannot be told not to wait (FIFOs before Linux 6.5). If poll() reports room, a page has
  // room, unless another writer is faster.
  [[nodiscard]] long write_some(std::span<iovec> parts) const {
    constexpr long kAtOnce = 8;  // RWF_NOWAIT
    const long r =
        os::call(SYS_pwritev2, pipe_, os::address(parts.data()), static_cast<long>(parts.size()), -1, -1, kAtOnce);
    if (r != -EOPNOTSUPP) return r;
    if ((os::poll_now(pipe_, POLLOUT) & POLLOUT) == 0) return -EAGAIN;
    return os::call(SYS_write, pipe_, os::address(parts[0].iov_base),
                    static_cast<long>(std::min<std::size_t>(parts[0].iov_len, PIPE_BUF)));
  }

  int pipe_;
  bool full_ = false;
};

/// The kernel, or a pump, has the connection by now.
long gone(const Socket& socket) {
  return socket.path == Path::kPumped ? kMoved : -EINVAL;
}

/// Returns 1: there is room; -EAGAIN, -EINTR; -EPIPE: there is no reader.
long await_room(int pipe, bool waits) {
  pollfd item{pipe, POLLOUT, 0};
  const timespec none{};
  const long ready = kernel_result(kernel->ppoll(&item, 1, waits ? nullptr : &none, nullptr));
  if (ready < 0) return ready;
  if ((item.revents & POLLERR) != 0) return -EPIPE;
  return ready == 0 ? -EAGAIN : 1;
}

/// Makes the checks of do_splice(), where the other end is a socket. `wrong`: the access mode that the pipe must not
/// have.
long refusal(int pipe, unsigned flags, int wrong) {
  constexpr unsigned kAll = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
  if ((flags & ~kAll) != 0) return -EINVAL;
  const long mode = kernel_result(kernel->fcntl(pipe, F_GETFL));
  if (mode < 0) return mode;
  if ((mode & O_ACCMODE) == wrong) return -EBADF;
  return kernel_result(kernel->fcntl(pipe, F_GETPIPE_SZ)) < 0 ? -EINVAL : mode;
}

}  // namespace

// True also for a dissolved connection, which then reports its error.
bool has_splice(const File& file) {
  if (kind(file) != FileKind::kStream) return false;
  const Path path = socket_of(file).path;
  return path == Path::kBypass || (path == Path::kUndecided && has_left_error(socket_of(file)));
}

long splice_from_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe) {
  if (count == 0) return 0;
  const long mode = refusal(pipe, flags, O_WRONLY);
  if (mode < 0) return mode;
  const bool waits = (flags & SPLICE_F_NONBLOCK) == 0 && (mode & O_NONBLOCK) == 0;
  Socket& socket = socket_of(file);
  for (;;) {
    if (const long r = await_bytes(pipe, waits); r <= 0) return r;
    if (!has_splice(file)) return gone(socket);
    const long there = bytes_in(pipe);
    if (there < 0) return there;
    if (there == 0) continue;  // another reader has taken them
    SendingPipe sending(socket, pipe, std::min(count, static_cast<std::size_t>(there)), (flags & SPLICE_F_MORE) != 0);
    const long r = run_sending(socket, sending, 0);
    sigpipe = sending.is_pipe() && r < 0;
    if (r != 0) return r;
  }
}

// SPLICE_F_NONBLOCK concerns the pipe; the socket's own flags say whether it waits (tcp_splice_read).
long splice_to_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe) {
  sigpipe = false;
  if (count == 0) return 0;
  const long mode = refusal(pipe, flags, O_RDONLY);
  if (mode < 0) return mode;
  const bool waits = (flags & SPLICE_F_NONBLOCK) == 0 && (mode & O_NONBLOCK) == 0;
  Socket& socket = socket_of(file);
  for (;;) {
    if (const long r = await_room(pipe, waits); r < 0) {
      sigpipe = r == -EPIPE;  // the kernel raises a write's SIGPIPE itself
      return r;
    }
    if (!has_splice(file)) return gone(socket);
    SplicingOut splicing(socket, pipe, count);
    const long r = run_receiving(socket, splicing, 0);
    if (r != 0 || !splicing.is_full()) return r;
  }
}

}  // namespace bypass::socket
