// splice() out of a pipe into a connection: what the kernel's moves without a copy is read into the send ring.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>

#include "socket/errno_map.h"
#include "socket/stream_send.h"

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
  // What lies in the pipe and has room: nothing leaves it that the connection does not take, and nobody waits here.
  long copy_in(const tcp::Room& room, std::size_t bytes) override {
    const long there = bytes_in(pipe_);
    if (there < 0) return there;
    const std::size_t most = std::min(bytes, static_cast<std::size_t>(there));
    std::size_t total = 0;
    for (const auto& part : room.part) {
      const std::size_t n = std::min(part.size(), most - total);
      if (n == 0) continue;
      const long r = read_file(pipe_, nullptr, part.data(), n);
      if (r < 0) return total != 0 ? static_cast<long>(total) : r;
      total += static_cast<std::size_t>(r);
      if (static_cast<std::size_t>(r) < n) break;
    }
    return static_cast<long>(total);
  }
  [[nodiscard]] bool slow_source() const override { return true; }

  int pipe_;
};

/// 1: there are bytes; 0: there will be none; -EAGAIN, -EINTR.
long await_bytes(int pipe, bool waits) {
  pollfd item{pipe, POLLIN, 0};
  const timespec none{};
  const long ready = kernel_result(kernel->ppoll(&item, 1, waits ? nullptr : &none, nullptr));
  if (ready < 0) return ready;
  if ((item.revents & POLLIN) != 0) return 1;
  return ready == 0 ? -EAGAIN : 0;
}

/// As do_splice() checks them, the one end being a socket.
long refusal(int pipe, unsigned flags) {
  constexpr unsigned kAll = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
  if ((flags & ~kAll) != 0) return -EINVAL;
  const long mode = kernel_result(kernel->fcntl(pipe, F_GETFL));
  if (mode < 0) return mode;
  if ((mode & O_ACCMODE) == O_WRONLY) return -EBADF;
  return kernel_result(kernel->fcntl(pipe, F_GETPIPE_SZ)) < 0 ? -EINVAL : 0;
}

}  // namespace

bool has_splice(const File& file) {
  return kind(file) == FileKind::kStream;
}

long splice_from_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe) {
  if (count == 0) return 0;
  if (const long r = refusal(pipe, flags); r < 0) return r;
  Socket& socket = socket_of(file);
  for (;;) {
    if (const long r = await_bytes(pipe, (flags & SPLICE_F_NONBLOCK) == 0); r <= 0) return r;
    const long there = bytes_in(pipe);
    if (there < 0) return there;
    if (there == 0) continue;  // another reader had them
    SendingPipe sending(socket, pipe, std::min(count, static_cast<std::size_t>(there)), (flags & SPLICE_F_MORE) != 0);
    const long r = run_sending(socket, sending, 0);
    sigpipe = sending.is_pipe() && r < 0;
    if (r != 0) return r;
  }
}

}  // namespace bypass::socket
