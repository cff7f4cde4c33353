#include "runtime/family/pump/pump.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "os/errno_map.h"
#include "os/kernel.h"
#include "os/os.h"
#include "socket/family/pumped.h"

namespace bypass::runtime {

namespace {

using socket::kAgain;
using socket::kernel;
constexpr int kNoSignal = MSG_DONTWAIT | MSG_NOSIGNAL;

long receive_from(int fd, std::span<std::byte> room, int flags = 0) {
  return os::call(SYS_recvfrom, fd, os::address(room.data()), static_cast<long>(room.size()), flags | MSG_DONTWAIT);
}

std::size_t waiting(int fd) {
  int bytes = 0;
  return os::call(SYS_ioctl, fd, FIONREAD, os::address(&bytes)) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

iovec vector_of(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size()};
}

}  // namespace

// --- From the wire to the program

bool Pump::receive() {
  if (!in_.empty() || wire_ended_ || program_gone_) return false;
  const iovec data = vector_of(in_.room());
  socket::Message message;
  message.data = {&data, 1};
  const long r = socket::receive(connection_, -1, message, MSG_DONTWAIT);
  if (r == kAgain) return false;
  wire_ended_ = r <= 0;
  failed_ = failed_ || r < 0;
  if (r > 0) in_.fill(0, static_cast<std::size_t>(r));
  return true;
}

bool Pump::to_program() {
  if (!in_.empty()) {
    const std::span<std::byte> bytes = in_.left();
    const long r = os::call(SYS_sendto, end_, os::address(bytes.data()), static_cast<long>(bytes.size()), kNoSignal);
    if (r == -EAGAIN || r == -EINTR) return r == -EINTR;
    if (r > 0) in_.take(static_cast<std::size_t>(r));
    program_reset_ = program_reset_ || r == -ECONNRESET;
    // After the program's shutdown(SHUT_RD), bytes from the wire are taken and dropped. If the program's end is closed,
    // poll() tells that, too.
    if (r < 0 && !program_gone_) in_.clear();
    return r > 0;
  }
  if (!wire_ended_ || failed_ || told_program_) return false;
  kernel->shutdown(end_, SHUT_WR);
  return told_program_ = true;
}

bool Pump::from_wire() {
  const bool received = receive();
  return to_program() || received;
}

// --- From the program to the wire

// Polls first. If poll says that the program's end has ended, all of its bytes are here.
bool Pump::read_program() {
  if (!out_.empty() || program_ended_ || failed_) return false;
  const short now = os::poll_now(end_, POLLIN | POLLRDHUP);
  const std::size_t there = waiting(end_);
  program_gone_ = program_gone_ || (now & POLLHUP) != 0;
  program_reset_ = program_reset_ || (now & POLLERR) != 0;
  if (there > 1) {
    const std::span<std::byte> room = out_.room();
    const long r = receive_from(end_, room.first(std::min(there - 1, room.size() - 1)));
    if (r == -EINTR) return true;
    const auto taken = static_cast<std::size_t>(r);  // its first byte has been carried on before
    const bool well = r > 0 && receive_from(end_, room.subspan(taken, 1), MSG_PEEK) == 1;
    if (well) out_.fill(1, taken + 1);
    // Bytes that cannot be read would stand in the way for ever. Urgent data is such, which the program has sent past
    // the stream.
    program_reset_ = program_reset_ || !well;
    program_ended_ = program_ended_ || !well;
    return true;
  }
  program_ended_ = (now & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  return program_ended_;
}

bool Pump::send() {
  if (!out_.empty() && !failed_) {
    const iovec data = vector_of(out_.left());
    socket::Message message;
    message.data = {&data, 1};
    bool sigpipe = false;
    const long r = socket::send(connection_, -1, message, kNoSignal, sigpipe);
    if (r == kAgain) return false;
    if (r > 0) out_.take(static_cast<std::size_t>(r));
    failed_ = failed_ || r < 0;
    return true;
  }
  if (!program_ended_ || failed_ || told_wire_ || program_reset_) return false;
  (void)socket::shutdown(connection_, -1, SHUT_WR);
  return told_wire_ = true;
}

bool Pump::to_wire() {
  const bool read = read_program();
  return send() || read;
}

// --- Its end

bool Pump::is_over() const {
  if (program_reset_) return program_ended_ && out_.empty();
  if (failed_) return in_.empty() || program_gone_;
  return told_wire_ && (program_gone_ || told_program_);
}

/// Ends the pump. A byte left unread resets the program's end.
void Pump::finish() {
  over_ = true;
  std::byte last[1];
  if (!failed_ && !program_reset_) (void)receive_from(end_, last);
  os::close(std::exchange(edges_, -1));
  os::close(std::exchange(end_, -1));
}

/// Closes our copy of the program's end. From here on our end sees whether the program's end is closed.
void Pump::let_program_go() {
  if (programs_ >= 0 && !socket::is_awaited(old_)) os::close(std::exchange(programs_, -1));
}

void Pump::wait() {
  const bool can_read = in_.empty() && !wire_ended_ && !program_gone_, can_write = !out_.empty();
  const int wanted = (can_read ? POLLIN : 0) | (can_write ? POLLOUT : 0);
  std::array<socket::PollItem, 3> items{};
  // A connection that has ended is always ready, so poll does not ask for it.
  if (!over_ && !failed_ && wanted != 0) items[0] = {.events = static_cast<short>(wanted), .file = &connection_};
  items[1] = {.fd = edges_, .events = POLLIN};
  if (programs_ >= 0) items[2] = {.events = POLLIN, .file = &old_};
  (void)socket::poll(items, Duration{-1}, nullptr);
  std::array<epoll_event, 1> heard{};
  if (edges_ >= 0) (void)os::epoll_now(edges_, heard.data(), 1);
}

bool Pump::prepare() {
  edges_ = kernel->epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {}};
  return edges_ >= 0 && kernel->epoll_ctl(edges_, EPOLL_CTL_ADD, end_, &event) == 0;
}

bool Pump::run() {
  for (;;) {
    let_program_go();
    while (!over_) {
      const bool in = from_wire(), out = to_wire();
      const bool rests = !in && !out;
      if (is_over() || (rests && program_reset_))
        finish();
      else if (rests)
        break;
    }
    if (over_ && programs_ < 0) return !failed_ && !program_reset_ && in_.empty();
    wait();
  }
}

}  // namespace bypass::runtime
