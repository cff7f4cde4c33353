#include "socket/options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "observe/reasons.h"
#include "socket/errno_map.h"

namespace bypass::socket {

namespace {

bool is_connection(const Socket& socket) {
  return connection_of(socket) != nullptr;
}

// A kernel socket to ask: the socket's own, or one that exists for the moment.
class KernelSocket {
 public:
  KernelSocket(const Socket& socket, int fd) : fd_(fd) {
    if (socket.details != nullptr) return;
    fd_ = kernel->socket(socket.domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
    own_ = true;
  }
  ~KernelSocket() {
    if (own_ && fd_ >= 0) kernel->close(fd_);
  }
  KernelSocket(const KernelSocket&) = delete;
  KernelSocket& operator=(const KernelSocket&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
  bool own_ = false;
};

void tell_why(int fd) {
  if (environment.record_why != nullptr)
    environment.record_why(fd, static_cast<unsigned>(observe::Reason::kOptionUnsupported), nullptr);
}

// Known to the table, but of datagrams only.
bool is_for_datagrams(int level, int name) {
  return level == SOL_SOCKET && (name == SO_TIMESTAMP || name == SO_TIMESTAMPNS);
}

// Of a local connection: a read has taken it from the kernel, and bytes come first. Of an undecided one: dissolve().
bool has_kept_error(const Socket& socket) {
  return socket.kind == FileKind::kStream && !is_connection(socket) && has_left_error(socket);
}

bool has_effect(const Socket& socket, int level, int name) {
  if (socket.kind == FileKind::kDatagram && datagram_knows(level, name)) return true;
  if (socket.kind != FileKind::kDatagram && is_for_datagrams(level, name)) return false;
  return find_option(level, name) != nullptr || needs_kernel(level, name);
}

// The stack's half of a socket that has a kernel half.
void take_over(Socket& socket, int fd, int level, int name, std::span<const std::byte> value) {
  Guard guard(shard());
  if (needs_kernel(level, name)) socket.set(kForceKernel);
  if (const OptionRow* row = find_option(level, name); row != nullptr && row->set != nullptr)
    row->set(guard, socket, value);
  if (socket.kind == FileKind::kDatagram) datagram_option(guard, socket, level, name, value);
  if (!has_effect(socket, level, name)) socket.set(kOptionIgnored);
  const bool decided = socket.path == Path::kBypass || socket.path == Path::kDual;
  if (decided) tell_ignored_options(socket, fd);
}

long set_connection_option(Socket& socket, int fd, int level, int name, std::span<const std::byte> value) {
  if (needs_kernel(level, name)) {
    tell_why(fd);
    return failure(Refusal::kNoOption);
  }
  const OptionRow* row = find_option(level, name);
  if (row != nullptr && row->set != nullptr) {
    Guard guard(shard());
    const long r = row->set(guard, socket, value);
    if (r == 0 && is_for_datagrams(level, name)) socket.set(kOptionIgnored);
    tell_ignored_options(socket, fd);
    return r;
  }
  const KernelSocket asked(socket, fd);
  const long r =
      kernel_result(kernel->setsockopt(asked.fd(), level, name, value.data(), static_cast<socklen_t>(value.size())));
  if (r != 0 || row != nullptr) return r;
  Guard guard(shard());
  socket.set(kOptionIgnored);
  tell_ignored_options(socket, fd);
  return r;
}

// What a program's value is given back as, for setsockopt(): sizes are reported doubled, and the segment's size is the
// path's. Empty: nothing that the program has set.
std::span<std::byte> set_by_program(Socket& socket, const OptionRow& row, std::span<std::byte> room) {
  const bool buffer = row.level == SOL_SOCKET && (row.name == SO_SNDBUF || row.name == SO_RCVBUF);
  const bool segment = row.level == IPPROTO_TCP && row.name == TCP_MAXSEG;
  const tcp::Options options = tcp_options(socket);
  if (!buffer && !segment) return room.first(static_cast<std::size_t>(row.get(socket, room)));
  const int value = static_cast<int>(segment                 ? options.max_segment
                                     : row.name == SO_SNDBUF ? options.send_buffer
                                                             : options.receive_buffer);
  if (value == 0) return {};
  std::memcpy(room.data(), &value, sizeof value);
  return room.first(sizeof value);
}

// Not kept from one connection to the next, or with no meaning here.
bool is_of_the_moment(const OptionRow& row) {
  return (row.level == IPPROTO_TCP && row.name == TCP_QUICKACK) ||
         (row.level == SOL_SOCKET && (row.name == SO_INCOMING_CPU || row.name == SO_BUSY_POLL));
}

}  // namespace

void KernelOptions::take(Socket& socket) {
  for (const OptionRow& row : option_rows()) {
    if (row.get == nullptr || row.set == nullptr || is_of_the_moment(row) || count_ == kMost) continue;
    if (row.level == IPPROTO_IPV6 && socket.domain != AF_INET6) continue;
    Value& value = values_[count_];
    value.row = &row;
    value.size = set_by_program(socket, row, value.bytes).size();
    if (value.size != 0) count_++;
  }
}

void KernelOptions::set(int fd) const {
  for (const Value& value : std::span(values_).first(count_)) {
    const auto ours = std::span(value.bytes).first(value.size);
    std::array<std::byte, kBytes> there{};
    socklen_t length = kBytes;
    const bool known = kernel->getsockopt(fd, value.row->level, value.row->name, there.data(), &length) == 0;
    if (known && std::ranges::equal(ours, std::span(there).first(length))) continue;
    kernel->setsockopt(fd, value.row->level, value.row->name, ours.data(), static_cast<socklen_t>(ours.size()));
  }
}

void tell_ignored_options(Socket& socket, int fd) {
  if (!socket.has(kOptionIgnored) || socket.has(kToldOption)) return;
  socket.set(kToldOption);
  tell_why(fd);
}

long set_option(File& file, int fd, int level, int name, const void* value, socklen_t length) {
  if (kind(file) == FileKind::kEpoll) return kernel_result(kernel->setsockopt(fd, level, name, value, length));
  Socket& socket = socket_of(file);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(value), value == nullptr ? 0 : length);
  if (is_connection(socket)) {
    if (static_cast<int>(length) < 0) return failure(Error::kInvalid);
    if (value == nullptr && length != 0) return failure(Refusal::kBadPointer);
    return set_connection_option(socket, fd, level, name, bytes);
  }
  // Dissolved, and its number is the placeholder that others have, too: there is nothing to set it on.
  if (socket.details == nullptr) return failure(Refusal::kNoOption);
  const bool with_messages = is_for_datagrams(level, name) || (level == IPPROTO_TCP && name == TCP_INQ);
  if (socket.path == Path::kLocal && (with_messages || needs_kernel(level, name))) {
    Guard guard(shard());
    local_leave(guard, socket);
  }
  const long r = kernel_result(kernel->setsockopt(fd, level, name, value, length));
  if (r != 0 || socket.path == Path::kKernel) return r;
  take_over(socket, fd, level, name, bytes);
  if (kind(file) == FileKind::kDatagram && level == IPPROTO_UDP && name == UDP_CORK) datagram_uncork(socket, fd);
  return r;
}

long get_option(File& file, int fd, int level, int name, void* value, socklen_t* length) {
  if (kind(file) == FileKind::kEpoll) return kernel_result(kernel->getsockopt(fd, level, name, value, length));
  Socket& socket = socket_of(file);
  if (kind(file) == FileKind::kDatagram && level == SOL_SOCKET && name == SO_ERROR) {
    const long r = datagram_error(socket, value, length);
    if (r != kAgain) return r;
  }
  if (kind(file) == FileKind::kDatagram && level == IPPROTO_IP && name == IP_MTU) {
    const long r = datagram_mtu(socket, value, length);
    if (r != kAgain) return r;
  }
  const bool listener_info = kind(file) == FileKind::kListener && level == IPPROTO_TCP && name == TCP_INFO;
  const bool accepts = kind(file) == FileKind::kListener && level == SOL_SOCKET && name == SO_ACCEPTCONN;
  const bool hidden = listener_info || accepts || (level == SOL_SOCKET && name == SO_ERROR && has_kept_error(socket));
  if (!is_connection(socket) && !hidden) {
    const long r = kernel_result(kernel->getsockopt(fd, level, name, value, length));
    if (r != 0 || level != IPPROTO_TCP || name != TCP_INFO || !is_local(socket)) return r;
    Guard guard(shard());
    if (is_local(socket)) add_ring_to_tcp_info(socket, {static_cast<std::byte*>(value), *length});
    return r;
  }
  const OptionRow* row = find_option(level, name);
  if (row == nullptr || row->get == nullptr) {
    const KernelSocket asked(socket, fd);
    return kernel_result(kernel->getsockopt(asked.fd(), level, name, value, length));
  }
  if (value == nullptr || length == nullptr) return failure(Refusal::kBadPointer);
  if (static_cast<int>(*length) < 0) return failure(Error::kInvalid);
  Guard guard(shard());
  const long n = row->get(socket, {static_cast<std::byte*>(value), *length});
  if (n < 0) return n;
  *length = static_cast<socklen_t>(n);
  return 0;
}

}  // namespace bypass::socket
