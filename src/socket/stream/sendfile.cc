// sendfile(2) from a file into a socket of the stack.
// Tests: tests/socket/stream_splice_test.cc.
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "os/os.h"
#include "socket/datagram/datagram.h"
#include "socket/stream/path_streams.h"
#include "socket/stream/stream_send.h"

namespace bypass::socket {

long read_file(int in_fd, off_t* offset, std::byte* to, std::size_t bytes) {
  const long r =
      kernel_result(offset == nullptr ? kernel->read(in_fd, to, bytes) : kernel->pread(in_fd, to, bytes, *offset));
  if (r > 0 && offset != nullptr) *offset += r;
  return r == -EISDIR ? -EINVAL : r;
}

namespace {

/// The size of one pread(): the send ring is filled in pieces, so that the peer gets the first while the next is read.
constexpr std::size_t kPiece = std::size_t{256} << 10;

class SendingFile final : public Sending {
 public:
  SendingFile(Socket& socket, int in_fd, off_t* offset, std::size_t count)
      : Sending(socket, count, false), in_fd_(in_fd), offset_(offset) {}

 private:
  long copy_in(const tcp::Room& room, std::size_t bytes) override {
    long total = 0;
    for (const auto& part : room.part) {
      const std::size_t n = std::min({part.size(), bytes - static_cast<std::size_t>(total), kPiece});
      if (n == 0) continue;
      const long r = read_file(in_fd_, offset_, part.data(), n);
      if (r < 0) return total != 0 ? total : r;
      total += r;
      if (static_cast<std::size_t>(r) < n || n < part.size()) break;
    }
    return total;
  }
  [[nodiscard]] bool slow_source() const override { return true; }

  int in_fd_;
  off_t* offset_;
};

/// The kernel's answer about the file, its offset and the count; the kernel is asked to move nothing.
long refusal_of_kernel(int fd, int in_fd, const off_t* offset, std::size_t count) {
  off_t at = offset != nullptr ? *offset : 0;
  const bool negative = static_cast<ssize_t>(count) < 0;
  return os::call(SYS_sendfile, fd, in_fd, offset != nullptr ? os::address(&at) : 0,
                  negative ? static_cast<long>(count) : 0);
}

}  // namespace

long send_file(File& file, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe) {
  sigpipe = false;
  if (kind(file) == FileKind::kDatagram) {
    Socket& socket = socket_of(file);
    if (const long refusal = refusal_of_kernel(fd, in_fd, offset, count); refusal < 0) return refusal;
    return datagram_send_file(socket, fd, in_fd, offset, std::min(count, kMostOfACall));
  }
  Socket& socket = socket_of(file);
  if (kind(file) == FileKind::kListener) return send_file_in_kernel(socket, fd, in_fd, offset, count, sigpipe);
  if (kind(file) != FileKind::kStream) return failure(Error::kInvalid);
  if (const long refusal = refusal_of_kernel(fd, in_fd, offset, count); refusal < 0) return refusal;
  return calls_of(socket).send_file(socket, fd, in_fd, offset, std::min(count, kMostOfACall), sigpipe);
}

long send_file_on_wire(Socket& socket, int, int in_fd, off_t* offset, std::size_t count, bool& sigpipe) {
  SendingFile sending(socket, in_fd, offset, count);
  const long r = run_sending(socket, sending, 0);
  sigpipe = sending.is_pipe() && r < 0;
  return r;
}

// The kernel's own socket is not connected, either. The file is read first: at its end the result is 0.
long send_file_unconnected(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe) {
  if (const long left = take_left_error(socket); left != 0) return left;
  return send_file_in_kernel(socket, fd, in_fd, offset, count, sigpipe);
}

long send_file_in_kernel(Socket&, int fd, int in_fd, off_t* offset, std::size_t count, bool&) {
  return os::call(SYS_sendfile, fd, in_fd, os::address(offset), static_cast<long>(count));
}

}  // namespace bypass::socket
