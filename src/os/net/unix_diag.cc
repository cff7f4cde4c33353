#include "os/net/unix_diag.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>

#include "os/os.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71  // Linux 5.14
#endif

namespace bypass::os {

namespace {

constexpr std::uint64_t kAnyCookie = ~std::uint64_t{0};  // INET_DIAG_NOCOOKIE, twice

template <typename T>
bool get_socket_option(int fd, int name, T& value) {
  socklen_t length = sizeof value;
  return call(SYS_getsockopt, fd, SOL_SOCKET, name, address(&value), address(&length)) == 0;
}

}  // namespace

std::optional<UnixSocketId> unix_socket_id(int fd) {
  UnixSocketId id;
  int domain = 0;
  if (!get_socket_option(fd, SO_DOMAIN, domain) || domain != AF_UNIX) return std::nullopt;
  if (!get_socket_option(fd, SO_COOKIE, id.cookie) || !get_socket_option(fd, SO_NETNS_COOKIE, id.network))
    return std::nullopt;
  id.inode = static_cast<std::uint32_t>(inode_of(fd));
  return id;
}

UnixDiag::UnixDiag()
    : fd_(static_cast<int>(call(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG))) {}

UnixDiag::~UnixDiag() {
  if (fd_ >= 0) close(fd_);
}

std::uint64_t UnixDiag::network() const {
  std::uint64_t cookie = 0;
  return fd_ >= 0 && get_socket_option(fd_, SO_NETNS_COOKIE, cookie) ? cookie : 0;
}

/// 0: the answer is there. Otherwise the kernel's error.
long UnixDiag::ask(std::uint32_t inode, std::uint64_t cookie, std::uint32_t show) {
  struct {
    nlmsghdr head;
    unix_diag_req body;
  } request{};
  answer_bytes_ = 0;
  if (fd_ < 0) return -EBADF;
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = AF_UNIX;
  request.body.udiag_states = ~0U;
  request.body.udiag_ino = inode;
  request.body.udiag_show = show;
  request.body.udiag_cookie[0] = static_cast<std::uint32_t>(cookie);
  request.body.udiag_cookie[1] = static_cast<std::uint32_t>(cookie >> 32);
  const long sent = call(SYS_sendto, fd_, address(&request), sizeof request, MSG_NOSIGNAL, 0, 0);
  if (sent != static_cast<long>(sizeof request)) return sent < 0 ? sent : -EIO;
  const long n = call(SYS_recvfrom, fd_, address(answer_), sizeof answer_, MSG_DONTWAIT, 0, 0);
  if (n < static_cast<long>(NLMSG_HDRLEN)) return n < 0 ? n : -EIO;
  nlmsghdr head;
  std::memcpy(&head, answer_, sizeof head);
  if (head.nlmsg_len > static_cast<std::size_t>(n)) return -EIO;
  if (head.nlmsg_type == NLMSG_ERROR && n >= static_cast<long>(NLMSG_LENGTH(sizeof(nlmsgerr)))) {
    nlmsgerr failed;
    std::memcpy(&failed, answer_ + NLMSG_HDRLEN, sizeof failed);
    return failed.error < 0 ? failed.error : -EIO;
  }
  if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < static_cast<long>(NLMSG_LENGTH(sizeof(unix_diag_msg)))) return -EIO;
  answer_bytes_ = static_cast<long>(head.nlmsg_len);
  return 0;
}

template <typename T>
std::optional<T> UnixDiag::attribute(unsigned short type) const {
  auto left = static_cast<std::size_t>(answer_bytes_) - NLMSG_LENGTH(sizeof(unix_diag_msg));
  const auto* at = reinterpret_cast<const rtattr*>(answer_ + NLMSG_LENGTH(NLMSG_ALIGN(sizeof(unix_diag_msg))));
  for (; RTA_OK(at, left); at = RTA_NEXT(at, left)) {
    if (at->rta_type != type || RTA_PAYLOAD(at) < sizeof(T)) continue;
    T value;
    std::memcpy(&value, RTA_DATA(at), sizeof value);
    return value;
  }
  return std::nullopt;
}

bool UnixDiag::is_gone(const UnixSocketId& id) {
  const long answer = ask(id.inode, id.cookie, 0);
  return answer == -ENOENT || answer == -ESTALE;  // another socket has the inode by now
}

std::optional<std::uint32_t> UnixDiag::peer_of(std::uint32_t inode) {
  if (ask(inode, kAnyCookie, UDIAG_SHOW_PEER) != 0) return std::nullopt;
  return attribute<std::uint32_t>(UNIX_DIAG_PEER);
}

std::optional<std::uint32_t> UnixDiag::unread_in(std::uint32_t inode) {
  if (ask(inode, kAnyCookie, UDIAG_SHOW_RQLEN) != 0) return std::nullopt;
  const auto queue = attribute<unix_diag_rqlen>(UNIX_DIAG_RQLEN);
  return queue.has_value() ? std::optional(queue->udiag_rqueue) : std::nullopt;
}

}  // namespace bypass::os
