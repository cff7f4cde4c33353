#include "fastpath/shm/rendezvous/channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace bypass::fastpath::shm {
namespace {

constexpr std::byte kWakeUp{0x77};

// Room for exactly one descriptor's control message, without padding: a second descriptor would fit into the padding.
constexpr std::size_t kControlBytes = CMSG_LEN(sizeof(int));

union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

Channel::Sent send_header(int fd, const msghdr& header) {
  const long sent = os::call(SYS_sendmsg, fd, os::address(&header), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return Channel::Sent::kSent;
  return sent == -EAGAIN || sent == -EINTR || sent == -ENOBUFS || sent == -ENOMEM ? Channel::Sent::kFull
                                                                                  : Channel::Sent::kGone;
}

// Takes the control data. At most one descriptor is kept, whatever the peer sends.
void take_control(msghdr& header, Channel::Received& received) {
  for (const cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr;
       each = CMSG_NXTHDR(&header, const_cast<cmsghdr*>(each))) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(each), sizeof fd);
    received.descriptor = Descriptor(fd);
  }
  if ((header.msg_flags & MSG_CTRUNC) == 0) return;
  received.many = true;
  received.descriptor.reset();
}

std::optional<ucred> credentials_of(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  const long r = os::call(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, os::address(&peer), os::address(&bytes));
  if (r != 0 || bytes != sizeof peer || peer.pid < 0) return std::nullopt;
  return peer;
}

}  // namespace

Channel Channel::make() {
  Channel made(Descriptor::kept(os::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (made.is_open()) made.take_descriptors(false);
  return made;
}

Channel::Sent Channel::send(std::span<const std::byte> packet, int passed) {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  Control control{};
  if (passed >= 0) {
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = kControlBytes;
    std::memcpy(CMSG_DATA(rights), &passed, sizeof passed);
  }
  return send_header(socket_.get(), header);
}

Channel::Received Channel::receive(std::span<std::byte> room) {
  Received received;
  iovec part{room.data(), room.size()};
  Control control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = kControlBytes;
  const auto ask = [&] {
    return os::call(SYS_recvmsg, socket_.get(), os::address(&header), MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  };
  long got = ask();
  // If the peer closed the socket with packets unread, the kernel reports that once, before the packets that the peer
  // has sent.
  if (got == -ECONNRESET) got = ask();
  if (got == -EAGAIN || got == -EINTR) return received;
  if (got >= 0) take_control(header, received);
  // An empty packet looks like the peer's end. This library sends no empty packets.
  received.kind = got <= 0 ? Received::Kind::kGone : Received::Kind::kPacket;
  if (got <= 0) return received;
  received.bytes = static_cast<std::size_t>(got);
  received.cut = (header.msg_flags & MSG_TRUNC) != 0;
  if (got == 1 && room[0] == kWakeUp) received.kind = Received::Kind::kWake;
  return received;
}

void Channel::wake(int descriptor) {
  os::call(SYS_sendto, descriptor, os::address(&kWakeUp), sizeof kWakeUp, MSG_DONTWAIT | MSG_NOSIGNAL);
}

std::optional<std::uint32_t> Channel::peer_user() const {
  const auto peer = credentials_of(socket_.get());
  return peer.has_value() ? std::optional(peer->uid) : std::nullopt;
}

std::int32_t Channel::peer_process() const {
  const auto peer = credentials_of(socket_.get());
  return peer.has_value() ? peer->pid : 0;
}

bool Channel::has_peer_ended() const {
  int pidfd = -1;
  socklen_t bytes = sizeof pidfd;
  const long r =
      os::call(SYS_getsockopt, socket_.get(), SOL_SOCKET, SO_PEERPIDFD, os::address(&pidfd), os::address(&bytes));
  const Descriptor process(r == 0 ? pidfd : -1);
  return r == -ESRCH || (process.is_open() && os::readable(process.get()));
}

bool Channel::is_of_our_user() const {
  return peer_user() == static_cast<std::uint32_t>(os::call(SYS_geteuid));
}

void Channel::take_descriptors(bool on) {
  const int value = on ? 1 : 0;
  os::call(SYS_setsockopt, socket_.get(), SOL_SOCKET, SO_PASSRIGHTS, os::address(&value), sizeof value);
}

}  // namespace bypass::fastpath::shm
