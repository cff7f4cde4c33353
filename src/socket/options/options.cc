#include "socket/options/options.h"

#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "observe/reasons.h"
#include "os/errno_map.h"
#include "socket/options/option_kinds.h"
#include "socket/policy.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

namespace {

bool is_connection(const Socket& socket) {
  return connection_of(socket) != nullptr;
}

// A kernel socket to ask: the socket's own, or a temporary one.
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

// The stack has it, alone or with the kernel: no option changes that any more.
bool is_decided(const Socket& socket) {
  return socket.path == Path::kBypass || socket.path == Path::kDual;
}

// True for an error of a local connection that a read has taken from the kernel, because bytes come first; or an
// undecided socket's error from dissolve().
bool has_kept_error(const Socket& socket) {
  return socket.kind == FileKind::kStream && !is_connection(socket) && has_left_error(socket);
}

// Options that a ring within the host cannot report beside its bytes, or does not use.
bool only_kernel_has(int level, int name) {
  const bool with_messages =
      level == SOL_SOCKET && (name == SO_TIMESTAMP || name == SO_TIMESTAMPNS || name == SO_TIMESTAMPING);
  const bool peeks_on = level == SOL_SOCKET && name == SO_PEEK_OFF;
  return with_messages || peeks_on || option_kind(FileKind::kStream, level, name) == OptionKind::kRefused;
}

bool bounds_buffers(int level, int name) {
  if (level == IPPROTO_TCP) return name == TCP_NOTSENT_LOWAT;
  constexpr int kBufLock = 72;  // socket(7) of Linux 5.16
  return level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_RCVBUF || name == SO_SNDBUFFORCE ||
                                 name == SO_RCVBUFFORCE || name == kBufLock);
}

long refuse(int fd, int level, int name) {
  report_option(fd, level, name);
  return failure(Refusal::kNoOption);
}

// Timestamps of sent data are not built.
bool wants_send_stamps(int level, int name, std::span<const std::byte> value) {
  constexpr std::uint32_t kOfSends = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_ACK;
  std::uint32_t flags = 0;
  if (level != SOL_SOCKET || name != SO_TIMESTAMPING || value.size() < sizeof flags) return false;
  std::memcpy(&flags, value.data(), sizeof flags);
  return (flags & kOfSends) != 0;
}

bool is_refused(const Socket& socket, int level, int name, std::span<const std::byte> value) {
  if (wants_send_stamps(level, name, value)) return true;
  return option_kind(socket.kind, level, name) == OptionKind::kRefused && !turns_off(value);
}

/// The stream is bound to a port's interface: the port's routes decide (Policy::decide_connect).
bool is_bound_to_port(const Socket& socket, int fd, int level, int name) {
  if (socket.kind != FileKind::kStream || level != SOL_SOCKET || (name != SO_BINDTODEVICE && name != SO_BINDTOIFINDEX))
    return false;
  int interface = 0;
  socklen_t length = sizeof interface;
  return kernel->getsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &interface, &length) == 0 && policy.is_port_on(interface);
}

// Notes an option for the stack's half of a socket that has a kernel half. Lock held.
void note_kind(Socket& socket, int fd, int level, int name, std::span<const std::byte> value) {
  const OptionKind what = option_kind(socket.kind, level, name);
  const bool kept = what == OptionKind::kKernels && !turns_off(value);
  if (!kept && !is_refused(socket, level, name, value)) return;
  if (is_decided(socket)) return report_option(fd, level, name);
  if (is_bound_to_port(socket, fd, level, name)) return;
  socket.set(kForceKernel);
  socket.details->kernel_option = {level, name};
}

void take_over(Socket& socket, int fd, int level, int name, std::span<const std::byte> value) {
  Guard guard(shard());
  note_kind(socket, fd, level, name, value);
  if (const OptionRow* row = find_option(socket, level, name); row != nullptr && row->set != nullptr)
    row->set(guard, socket, value);
  if (socket.kind == FileKind::kDatagram) datagram_option(guard, socket, level, name, value);
}

// Options that are only kept are kept by a kernel socket under the number.
long set_in_kernel(Socket& socket, int fd, int level, int name, std::span<const std::byte> value) {
  {
    const Guard guard(shard());
    if (socket.details == nullptr) give_kernel_socket(socket, fd);
  }
  const KernelSocket asked(socket, fd);
  return kernel_result(kernel->setsockopt(asked.fd(), level, name, value.data(), static_cast<socklen_t>(value.size())));
}

/// They take CAP_NET_ADMIN in the user namespace of the socket's network namespace (socket(7)). The kernel's socket
/// beneath is of the same, so it is asked, by taking the value.
bool takes_a_right(int level, int name) {
  return level == SOL_SOCKET && (name == SO_SNDBUFFORCE || name == SO_RCVBUFFORCE);
}

long set_connection_option(Socket& socket, int fd, int level, int name, std::span<const std::byte> value) {
  if (is_refused(socket, level, name, value)) return refuse(fd, level, name);
  if (takes_a_right(level, name)) {
    const auto length = static_cast<socklen_t>(value.size());
    const long r = kernel_result(kernel->setsockopt(fd, level, name, value.data(), length));
    if (r != 0) return r;
  }
  if (const OptionRow* row = find_option(socket, level, name); row != nullptr && row->set != nullptr) {
    Guard guard(shard());
    if (row->in_details && socket.details == nullptr) give_kernel_socket(socket, fd);
    if (row->in_details && socket.details == nullptr) return refuse(fd, level, name);
    return row->set(guard, socket, value);
  }
  const long r = set_in_kernel(socket, fd, level, name, value);
  if (r == 0 && option_kind(socket.kind, level, name) == OptionKind::kKernels && !turns_off(value))
    report_option(fd, level, name);
  return r;
}

// A program's value in the form for setsockopt(): sizes are reported doubled, and the segment size is the path's.
// Empty: the program has set nothing.
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

// Options that are not kept from one connection to the next, or have no meaning here.
bool is_of_the_moment(const OptionRow& row) {
  if (row.level == SOL_SOCKET) return row.name == SO_INCOMING_CPU;
  return row.level == IPPROTO_TCP &&
         (row.name == TCP_QUICKACK || row.name == TCP_FASTOPEN || row.name == TCP_FASTOPEN_NO_COOKIE);
}

}  // namespace

void KernelOptions::take(Socket& socket) {
  for (const auto rows : option_rows())
    for (const OptionRow& row : rows) take(socket, row);
}

void KernelOptions::take(Socket& socket, const OptionRow& row) {
  if (row.get == nullptr || row.set == nullptr || is_of_the_moment(row) || count_ == kMost) return;
  if (row.level == IPPROTO_IPV6 && socket.domain != AF_INET6) return;
  Value& value = values_[count_];
  value.row = &row;
  value.size = set_by_program(socket, row, value.bytes).size();
  if (value.size != 0) count_++;
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

void report_option(int fd, int level, int name) {
  std::array<char, 64> text{};
  const OptionName* const known = find_option_name(level, name);
  if (known != nullptr)
    std::snprintf(text.data(), text.size(), "setsockopt %s", known->text);
  else
    std::snprintf(text.data(), text.size(), "setsockopt level %d option %d", level, name);
  policy.record_why(fd, static_cast<unsigned>(observe::Reason::kOptionUnsupported), text.data());
}

void report_kernel_option(const Socket& socket, int fd) {
  report_option(fd, socket.details->kernel_option.level, socket.details->kernel_option.name);
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
  // The connection was dissolved, and its number is the placeholder, which other sockets use, too: there is nothing to
  // set the option on.
  if (socket.details == nullptr) return failure(Refusal::kNoOption);
  if (is_decided(socket) && static_cast<int>(length) >= 0 && is_refused(socket, level, name, bytes))
    return refuse(fd, level, name);
  if (calls_of(socket).in_kernel && only_kernel_has(level, name)) {
    Guard guard(shard());
    calls_of(socket).leave(guard, socket);
  }
  const long r = kernel_result(kernel->setsockopt(fd, level, name, value, length));
  if (r != 0 || socket.path == Path::kKernel) return r;
  take_over(socket, fd, level, name, bytes);
  if (calls_of(socket).in_kernel && bounds_buffers(level, name)) {
    Guard guard(shard());
    calls_of(socket).note_buffers(guard, socket, fd);
  }
  if (kind(file) == FileKind::kDatagram && level == IPPROTO_UDP && name == UDP_CORK) datagram_uncork(socket, fd);
  return r;
}

namespace {

// SO_PEERNAME: getpeername(), limited to the requested length and to the name's length.
long get_peer_name(File& file, int fd, void* value, const socklen_t* length) {
  if (value == nullptr || length == nullptr) return failure(Refusal::kBadPointer);
  if (static_cast<int>(*length) < 0) return failure(Error::kInvalid);
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (peer_name(file, fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return failure(Error::kNotConnected);
  if (size < *length) return failure(Error::kInvalid);
  std::memcpy(value, &name, *length);
  return 0;
}

// Answers that have changed in the kernel by the time that a segment has arrived.
void look_before_reading(Socket& socket, int level, int name) {
  const bool of_state = (level == SOL_SOCKET && name == SO_ERROR) || (level == IPPROTO_TCP && name == TCP_INFO);
  if (!of_state || socket.path != Path::kBypass) return;
  Guard guard(shard());
  look_before_asking(guard);
}

}  // namespace

long get_option(File& file, int fd, int level, int name, void* value, socklen_t* length) {
  if (kind(file) == FileKind::kEpoll) return kernel_result(kernel->getsockopt(fd, level, name, value, length));
  Socket& socket = socket_of(file);
  if (is_decided(socket) && level == SOL_SOCKET && name == SO_PEERNAME) return get_peer_name(file, fd, value, length);
  look_before_reading(socket, level, name);
  if (kind(file) == FileKind::kDatagram && level == SOL_SOCKET && name == SO_ERROR) {
    const long r = datagram_error(socket, value, length);
    if (r != kAgain) return r;
  }
  if (kind(file) == FileKind::kDatagram && level == IPPROTO_IP && name == IP_MTU) {
    const long r = datagram_mtu(socket, value, length);
    if (r != kAgain) return r;
  }
  const bool error_of_kernel = calls_of(socket).in_kernel && level == SOL_SOCKET && name == SO_ERROR;
  if (error_of_kernel) look_at_kernel_halves(shard().clock().now(), true);  // the peer may have died
  const bool listener_info = kind(file) == FileKind::kListener && level == IPPROTO_TCP && name == TCP_INFO;
  const bool accepts = kind(file) == FileKind::kListener && level == SOL_SOCKET && name == SO_ACCEPTCONN;
  const bool hidden = listener_info || accepts || (level == SOL_SOCKET && name == SO_ERROR && has_kept_error(socket));
  if (!is_connection(socket) && !hidden) {
    const long r = kernel_result(kernel->getsockopt(fd, level, name, value, length));
    if (r != 0 || level != IPPROTO_TCP || name != TCP_INFO || !calls_of(socket).in_kernel) return r;
    Guard guard(shard());
    calls_of(socket).add_to_tcp_info(socket, {static_cast<std::byte*>(value), *length});
    return r;
  }
  const OptionRow* row = find_option(socket, level, name);
  if (row == nullptr || row->get == nullptr) {
    // A value that must be the same the next time.
    if (level == SOL_SOCKET && name == SO_COOKIE && socket.details == nullptr) {
      const Guard guard(shard());
      if (is_connection(socket)) give_kernel_socket(socket, fd);
    }
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
