#include "os/net/unix_queue.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "os/os.h"

namespace bypass::os {

namespace {

/// A socket by which the kernel is asked.
class Asking {
 public:
  Asking() : fd_(static_cast<int>(call(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG))) {}
  ~Asking() {
    if (fd_ >= 0) close(fd_);
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  /// The attribute `type` of one socket's, as that `show` asks for it.
  template <typename T>
  std::optional<T> ask(std::uint32_t inode, std::uint32_t show, unsigned short type) {
    if (fd_ < 0 || !send(inode, show)) return std::nullopt;
    alignas(nlmsghdr) std::array<std::byte, 1024> answer;
    const long n = call(SYS_recvfrom, fd_, address(answer.data()), sizeof answer, MSG_DONTWAIT, 0, 0);
    if (n < static_cast<long>(NLMSG_LENGTH(sizeof(unix_diag_msg)))) return std::nullopt;
    auto* const head = reinterpret_cast<nlmsghdr*>(answer.data());
    if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY || head->nlmsg_len > static_cast<std::size_t>(n)) return std::nullopt;
    auto* const body = static_cast<std::byte*>(NLMSG_DATA(head));
    std::size_t left = head->nlmsg_len - NLMSG_LENGTH(sizeof(unix_diag_msg));
    auto* at = reinterpret_cast<rtattr*>(body + NLMSG_ALIGN(sizeof(unix_diag_msg)));
    for (; RTA_OK(at, left); at = RTA_NEXT(at, left)) {
      if (at->rta_type != type || RTA_PAYLOAD(at) < sizeof(T)) continue;
      T value;
      std::memcpy(&value, RTA_DATA(at), sizeof value);
      return value;
    }
    return std::nullopt;
  }

 private:
  bool send(std::uint32_t inode, std::uint32_t show) {
    struct {
      nlmsghdr head;
      unix_diag_req body;
    } request{};
    request.head.nlmsg_len = sizeof request;
    request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    request.head.nlmsg_flags = NLM_F_REQUEST;
    request.body.sdiag_family = AF_UNIX;
    request.body.udiag_states = ~0U;
    request.body.udiag_ino = inode;
    request.body.udiag_show = show;
    request.body.udiag_cookie[0] = request.body.udiag_cookie[1] = ~0U;  // INET_DIAG_NOCOOKIE: whatever it is
    return call(SYS_sendto, fd_, address(&request), sizeof request, MSG_NOSIGNAL, 0, 0) == sizeof request;
  }

  int fd_;
};

}  // namespace

std::optional<std::uint32_t> unread_at_other_end(std::uint32_t inode) {
  Asking asking;
  const auto other = asking.ask<std::uint32_t>(inode, UDIAG_SHOW_PEER, UNIX_DIAG_PEER);
  if (!other.has_value()) return std::nullopt;
  const auto queue = asking.ask<unix_diag_rqlen>(*other, UDIAG_SHOW_RQLEN, UNIX_DIAG_RQLEN);
  return queue.has_value() ? std::optional(queue->udiag_rqueue) : std::nullopt;
}

}  // namespace bypass::os
