// splice() out of a pipe into a connection: what the kernel's moves without a copy is read into the send ring.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "socket/errno_map.h"
#include "socket/os.h"
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
  // What lies in the pipe and has room: nothing leaves it that the connection does not take. (Out of a pipe vmsplice
  // copies. It waits for nothing and is no cancellation point, so what it has taken is not lost.)
  long copy_in(const tcp::Room& room, std::size_t bytes) override {
    const std::size_t first = std::min(room.part[0].size(), bytes);
    const std::array<iovec, 2> to = {iovec{room.part[0].data(), first}, iovec{room.part[1].data(), bytes - first}};
    const long r = os::call(SYS_vmsplice, pipe_, os::address(to.data()), to.size(), SPLICE_F_NONBLOCK);
    return r == -EAGAIN ? 0 : r;  // then another reader had them
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

/// As do_splice() checks them, the one end being a socket. The pipe's flags.
long refusal(int pipe, unsigned flags) {
  constexpr unsigned kAll = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
  if ((flags & ~kAll) != 0) return -EINVAL;
  const long mode = kernel_result(kernel->fcntl(pipe, F_GETFL));
  if (mode < 0) return mode;
  if ((mode & O_ACCMODE) == O_WRONLY) return -EBADF;
  return kernel_result(kernel->fcntl(pipe, F_GETPIPE_SZ)) < 0 ? -EINVAL : mode;
}

}  // namespace

bool has_splice(const File& file) {
  return kind(file) == FileKind::kStream && socket_of(file).path == Path::kBypass;
}

long splice_from_pipe(File& file, int pipe, std::size_t count, unsigned flags, bool& sigpipe) {
  if (count == 0) return 0;
  const long mode = refusal(pipe, flags);
  if (mode < 0) return mode;
  const bool waits = (flags & SPLICE_F_NONBLOCK) == 0 && (mode & O_NONBLOCK) == 0;
  Socket& socket = socket_of(file);
  for (;;) {
    if (const long r = await_bytes(pipe, waits); r <= 0) return r;
    if (!has_splice(file)) return -EINVAL;  // the connection is the kernel's by now
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
