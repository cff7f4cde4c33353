#include "fake_kernel.h"

#include <linux/icmp.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace bypass::verbs {
namespace {

FakeKernel* fake = nullptr;

void require(bool condition) {
  if (!condition) std::abort();  // the code under test asks what this kernel knows nothing of
}

int refuse_call(int error) {
  errno = error;
  return -1;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& object) {
  return {reinterpret_cast<const std::byte*>(&object), sizeof object};
}

}  // namespace

struct FakeKernelCalls {
  using Kind = FakeKernel::Kind;

  static int socket(int family, int type, int protocol) {
    if (family == AF_NETLINK) return fake->make_socket(protocol == NETLINK_ROUTE ? Kind::kNews : Kind::kSockets);
    if ((type & SOCK_RAW) != SOCK_RAW) return fake->make_socket(Kind::kDatagram);
    return fake->raw ? fake->make_socket(Kind::kIcmp) : refuse_call(EPERM);
  }
  static int bind(int fd, const sockaddr* address, socklen_t) {
    require(fake->kind_of(fd) == Kind::kNews);
    require(reinterpret_cast<const sockaddr_nl*>(address)->nl_groups == (RTMGRP_NEIGH | RTMGRP_LINK));
    return fake->tells ? 0 : refuse_call(EPERM);
  }
  static int setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
    const Kind kind = fake->kind_of(fd);
    if (level == SOL_SOCKET && name == SO_BINDTODEVICE)
      fake->bound[kind == Kind::kIcmp ? IPPROTO_ICMP : 0] = std::string(static_cast<const char*>(value), length - 1);
    if (level == SOL_RAW && name == ICMP_FILTER) std::memcpy(&fake->icmp_filter, value, sizeof fake->icmp_filter);
    return 0;
  }
  static int ioctl(int, unsigned long what, ...) {
    va_list arguments;
    va_start(arguments, what);
    auto& request = *va_arg(arguments, ifreq*);
    va_end(arguments);
    if (std::strcmp(request.ifr_name, FakeKernel::kName) != 0) return refuse_call(ENODEV);
    if (what == SIOCGIFINDEX) request.ifr_ifindex = fake->index;
    if (what == SIOCGIFMTU) request.ifr_mtu = 1500;
    if (what == SIOCGIFFLAGS) request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (what == SIOCGIFHWADDR) {
      request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
      std::copy_n(fake->mac.bytes.begin(), 6, request.ifr_hwaddr.sa_data);
    }
    return 0;
  }
  static ssize_t sendto(int fd, const void* message, std::size_t length, int, const sockaddr* to, socklen_t) {
    switch (fake->kind_of(fd)) {
      case Kind::kNews:
        fake->hear_of_neighbour(message);
        break;
      case Kind::kSockets:
        fake->hear_of_connection(message);
        break;
      case Kind::kDatagram:
        fake->nudged.push_back(ntohl(reinterpret_cast<const sockaddr_in*>(to)->sin_addr.s_addr));
        break;
      case Kind::kIcmp:
        require(false);
    }
    return static_cast<ssize_t>(length);
  }
  static ssize_t recv(int fd, void* out, std::size_t room, int) {
    if (fake->kind_of(fd) == Kind::kNews && std::exchange(fake->lost_, false)) return refuse_call(ENOBUFS);
    return ::recv(fd, out, room, MSG_DONTWAIT);
  }
};

FakeKernel::FakeKernel() : before_(packet::libc) {
  require(fake == nullptr);
  fake = this;
  packet::libc.socket = FakeKernelCalls::socket;
  packet::libc.bind = FakeKernelCalls::bind;
  packet::libc.setsockopt = FakeKernelCalls::setsockopt;
  packet::libc.ioctl = FakeKernelCalls::ioctl;
  packet::libc.sendto = FakeKernelCalls::sendto;
  packet::libc.recv = FakeKernelCalls::recv;
}

FakeKernel::~FakeKernel() {
  packet::libc = before_;
  for (const auto& [kind, fd] : peers_) ::close(fd);
  fake = nullptr;
}

int FakeKernel::make_socket(Kind kind) {
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  struct stat about {};
  require(fstat(ends[0], &about) == 0);  // whatever number it is moved to
  sockets_[about.st_ino] = kind;
  if (const auto older = peers_.find(kind); older != peers_.end()) ::close(older->second);
  peers_[kind] = ends[1];
  return ends[0];
}

FakeKernel::Kind FakeKernel::kind_of(int fd) const {
  struct stat about {};
  require(fstat(fd, &about) == 0);
  return sockets_.at(about.st_ino);
}

void FakeKernel::answer(Kind kind, std::span<const std::byte> message) {
  require(::send(peers_.at(kind), message.data(), message.size(), 0) == static_cast<ssize_t>(message.size()));
}

void FakeKernel::refuse(Kind kind, int error) {
  struct {
    nlmsghdr head;
    nlmsgerr body;
  } message{};
  message.head.nlmsg_len = sizeof message;
  message.head.nlmsg_type = NLMSG_ERROR;
  message.body.error = -error;
  answer(kind, bytes_of(message));
}

void FakeKernel::tell(const News& news) {
  struct {
    nlmsghdr head;
    ndmsg body;
    rtattr about_address;
    std::uint32_t address;
    rtattr about_mac;
    std::uint8_t mac[8];  // padded
  } message{};
  message.head.nlmsg_len = sizeof message;
  message.head.nlmsg_type = RTM_NEWNEIGH;
  message.body.ndm_family = news.family;
  message.body.ndm_ifindex = news.interface;
  message.body.ndm_state = news.state;
  message.about_address = {RTA_LENGTH(sizeof message.address), NDA_DST};
  message.address = htonl(news.address);
  message.about_mac = {RTA_LENGTH(6), NDA_LLADDR};
  std::copy(news.mac.bytes.begin(), news.mac.bytes.end(), message.mac);
  answer(Kind::kNews, bytes_of(message));
}

void FakeKernel::tell_of_links() {
  struct {
    nlmsghdr head;
    ifinfomsg body;
  } message{};
  message.head.nlmsg_len = sizeof message;
  message.head.nlmsg_type = RTM_NEWLINK;
  message.body.ifi_index = index;
  answer(Kind::kNews, bytes_of(message));
}

void FakeKernel::deliver(std::span<const std::byte> packet) {
  answer(Kind::kIcmp, packet);
}

void FakeKernel::hear_of_neighbour(const void* message) {
  const auto& head = *static_cast<const nlmsghdr*>(message);
  const auto& body = *static_cast<const ndmsg*>(NLMSG_DATA(&head));
  const auto& attribute = *reinterpret_cast<const rtattr*>(&body + 1);
  require(body.ndm_family == AF_INET && body.ndm_ifindex == index && attribute.rta_type == NDA_DST);
  std::uint32_t address = 0;
  std::memcpy(&address, RTA_DATA(&attribute), sizeof address);
  address = ntohl(address);
  if (head.nlmsg_type == RTM_NEWNEIGH) {
    require((body.ndm_flags & NTF_USE) != 0);
    used.push_back(address);
    if (!admin) refuse(Kind::kNews, EPERM);
    return;
  }
  require(head.nlmsg_type == RTM_GETNEIGH);
  looked_up.push_back(address);
  if (const auto known = neighbours.find(address); known != neighbours.end())
    tell({.address = address, .mac = known->second});
  else
    refuse(Kind::kNews, ENOENT);
}

void FakeKernel::hear_of_connection(const void* message) {
  const auto& head = *static_cast<const nlmsghdr*>(message);
  const auto& body = *static_cast<const inet_diag_req_v2*>(NLMSG_DATA(&head));
  require(head.nlmsg_type == SOCK_DIAG_BY_FAMILY && body.sdiag_protocol == IPPROTO_TCP);
  const Connection wanted{ntohl(body.id.idiag_src[0]), ntohl(body.id.idiag_dst[0]), ntohs(body.id.idiag_sport),
                          ntohs(body.id.idiag_dport), TCP_ESTABLISHED};
  sought.push_back(wanted);
  const auto found = std::find_if(connections.begin(), connections.end(), [&](const Connection& each) {
    const bool listens = each.state == TCP_LISTEN && each.local_port == wanted.local_port;
    return listens || (each.local == wanted.local && each.remote == wanted.remote &&
                       each.local_port == wanted.local_port && each.remote_port == wanted.remote_port);
  });
  if (found == connections.end()) return refuse(Kind::kSockets, ENOENT);
  struct {
    nlmsghdr head;
    inet_diag_msg body;
  } reply{};
  reply.head.nlmsg_len = sizeof reply;
  reply.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  reply.body.idiag_state = found->state;
  answer(Kind::kSockets, bytes_of(reply));
}

}  // namespace bypass::verbs
