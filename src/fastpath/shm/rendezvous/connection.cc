#include "fastpath/shm/rendezvous/connection.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "fastpath/shm/rendezvous/descriptor.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

namespace bypass::fastpath::shm {
namespace {

template <typename T>
std::optional<T> socket_option(int fd, int name) {
  T value{};
  socklen_t bytes = sizeof value;
  const long r = os::call(SYS_getsockopt, fd, SOL_SOCKET, name, os::address(&value), os::address(&bytes));
  if (r != 0 || bytes != sizeof value) return std::nullopt;
  return value;
}

/// SYS_getsockname or SYS_getpeername.
std::optional<Endpoint> name_of(int fd, long call) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  if (os::call(call, fd, os::address(&name), os::address(&bytes)) != 0) return std::nullopt;
  Endpoint endpoint;
  if (name.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(name);
    endpoint = {IpAddress::from_v4(be32_to_host(v4.sin_addr.s_addr)), be16_to_host(v4.sin_port)};
  } else if (name.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(name);
    std::memcpy(endpoint.address.bytes.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
    endpoint.port = be16_to_host(v6.sin6_port);
  } else {
    return std::nullopt;
  }
  return endpoint;
}

struct TableEntry {
  std::uint32_t inode = 0;
  std::uint8_t state = 0;
};

struct Question {
  nlmsghdr head{};
  inet_diag_req_v2 body{};
};

void put_address(std::uint32_t (&out)[4], const IpAddress& address) {
  if (address.is_v4()) {
    out[0] = host_to_be32(address.v4());
  } else {
    std::memcpy(out, address.bytes.data(), sizeof out);
  }
}

// The netlink request for exactly one socket, not for a dump. A v4-mapped connection is in the table like an IPv4 one.
Question question(const Endpoint& local, const Endpoint& remote, std::uint32_t interface) {
  Question q;
  q.head.nlmsg_len = sizeof q;
  q.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  q.head.nlmsg_flags = NLM_F_REQUEST;
  q.body.sdiag_family = local.address.is_v4() ? AF_INET : AF_INET6;
  q.body.sdiag_protocol = IPPROTO_TCP;
  q.body.idiag_states = ~0U;
  q.body.id.idiag_sport = host_to_be16(local.port);
  q.body.id.idiag_dport = host_to_be16(remote.port);
  put_address(q.body.id.idiag_src, local.address);
  put_address(q.body.id.idiag_dst, remote.address);
  q.body.id.idiag_if = interface;
  q.body.id.idiag_cookie[0] = q.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return q;
}

// The kernel's table of TCP sockets in the caller's network namespace. The answer is queued before the request's send
// call returns, so nothing waits.
class SocketTable {
 public:
  SocketTable()
      : netlink_(os::call(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG)) {}

  [[nodiscard]] bool is_of(std::uint64_t network) const {
    return netlink_.is_open() && socket_option<std::uint64_t>(netlink_.get(), SO_NETNS_COOKIE) == network;
  }
  [[nodiscard]] bool can_be_asked() const { return netlink_.is_open(); }

  /// kNoSocketTable: no answer, or an invalid one. kWrongConnection: there is no such socket.
  Outcome<TableEntry> find(const Endpoint& local, const Endpoint& remote, std::uint32_t interface) {
    const Question q = question(local, remote, interface);
    if (os::call(SYS_sendto, netlink_.get(), os::address(&q), sizeof q, 0, 0, 0) < 0) return Refusal::kNoSocketTable;
    alignas(nlmsghdr) char answer[1024];  // the attributes after the fixed part may be cut off; they are not needed
    const long got = os::call(SYS_recvfrom, netlink_.get(), os::address(answer), sizeof answer, MSG_DONTWAIT, 0, 0);
    return got < 0 ? Outcome<TableEntry>(Refusal::kNoSocketTable) : parse(answer, static_cast<std::size_t>(got));
  }

 private:
  static Outcome<TableEntry> parse(const char* answer, std::size_t bytes) {
    nlmsghdr head;
    if (bytes < sizeof head) return Refusal::kNoSocketTable;
    std::memcpy(&head, answer, sizeof head);
    if (head.nlmsg_type == NLMSG_ERROR) return error_of(answer, bytes);
    inet_diag_msg body;
    if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || bytes < NLMSG_HDRLEN + sizeof body) return Refusal::kNoSocketTable;
    std::memcpy(&body, answer + NLMSG_HDRLEN, sizeof body);
    return TableEntry{body.idiag_inode, body.idiag_state};
  }
  static Refusal error_of(const char* answer, std::size_t bytes) {
    nlmsgerr error{};
    if (bytes < NLMSG_HDRLEN + sizeof error.error) return Refusal::kNoSocketTable;
    std::memcpy(&error.error, answer + NLMSG_HDRLEN, sizeof error.error);
    return error.error == -ENOENT ? Refusal::kWrongConnection : Refusal::kNoSocketTable;
  }

  Descriptor netlink_;
};

/// The inode of the socket that a process has under that descriptor number; 0: no socket. proc_pid_fd(5):
/// "socket:[4711]".
Outcome<std::uint32_t> socket_of(const ClaimedEnd& claimed) {
  if (claimed.pid <= 0) return Refusal::kOtherRights;
  const std::string place = "/proc/" + std::to_string(claimed.pid) + "/fd/" + std::to_string(claimed.number);
  std::array<char, 64> target{};
  const long bytes =
      os::call(SYS_readlinkat, AT_FDCWD, os::address(place.c_str()), os::address(target.data()), target.size());
  // ENOENT: the number is not open, or the process has gone.
  if (bytes < 0) return bytes == -ENOENT ? Refusal::kWrongConnection : Refusal::kOtherRights;
  std::string_view text(target.data(), static_cast<std::size_t>(bytes));
  constexpr std::string_view kFront = "socket:[";
  if (!text.starts_with(kFront)) return std::uint32_t{0};
  text.remove_prefix(kFront.size());
  std::uint32_t inode = 0;
  std::from_chars(text.data(), text.data() + text.size(), inode);
  return inode;
}

}  // namespace

Outcome<ConnectionEnd> connection_end(int fd) {
  if (socket_option<int>(fd, SO_PROTOCOL) != IPPROTO_TCP) return Refusal::kNotConnected;
  const auto local = name_of(fd, SYS_getsockname);
  const auto remote = name_of(fd, SYS_getpeername);
  const auto network = socket_option<std::uint64_t>(fd, SO_NETNS_COOKIE);
  if (!local || !remote || !network) return Refusal::kNotConnected;
  return ConnectionEnd{*local, *remote, *network};
}

std::uint32_t interface_of(int fd) {
  return static_cast<std::uint32_t>(socket_option<int>(fd, SO_BINDTOIFINDEX).value_or(0));
}

Refusal check_other_end(const ClaimedEnd& claimed, const ConnectionEnd& own) {
  if (claimed.number < 0) return Refusal::kNoProof;
  SocketTable table;
  if (!table.is_of(own.network)) return table.can_be_asked() ? Refusal::kOtherNamespace : Refusal::kNoSocketTable;
  const Outcome<TableEntry> entry = table.find(own.remote, own.local, claimed.interface);
  if (!entry.ok()) return entry.refusal;
  if (entry.value.state != TCP_ESTABLISHED) return Refusal::kNotConnected;
  const Outcome<std::uint32_t> inode = socket_of(claimed);
  if (!inode.ok()) return inode.refusal;
  return inode.value != 0 && inode.value == entry.value.inode ? Refusal::kNone : Refusal::kWrongConnection;
}

bool other_end_is_here(int fd) {
  const Outcome<ConnectionEnd> own = connection_end(fd);
  SocketTable table;
  if (!own.ok() || !table.is_of(own.value.network)) return false;
  const Outcome<TableEntry> entry = table.find(own.value.remote, own.value.local, interface_of(fd));
  return entry.ok() && entry.value.state != TCP_LISTEN;
}

}  // namespace bypass::fastpath::shm
