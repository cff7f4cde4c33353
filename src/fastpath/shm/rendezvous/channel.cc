#include "fastpath/shm/rendezvous/channel.h"

#include <sys/socket.h>

#include <cerrno>

#include "os/net/rights_message.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace bypass::fastpath::shm {
namespace {

constexpr std::byte kWakeUp{0x77};

Channel::Sent send_message(int fd, os::RightsMessage<1>& message) {
  const long sent = os::call(SYS_sendmsg, fd, os::address(&message.header()), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return Channel::Sent::kSent;
  return sent == -EAGAIN || sent == -EINTR || sent == -ENOBUFS || sent == -ENOMEM ? Channel::Sent::kFull
                                                                                  : Channel::Sent::kGone;
}

// At most one descriptor is kept, whatever the peer sends.
void take_descriptor(const os::RightsMessage<1>& message, Channel::Received& received) {
  const auto [passed] = message.received();
  received.descriptor = Descriptor(passed);
  if (!message.lacks_descriptors()) return;
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
  os::RightsMessage<1> message(packet.data(), packet.size());
  if (passed >= 0) message.pass({&passed, 1});
  return send_message(socket_.get(), message);
}

Channel::Received Channel::receive(std::span<std::byte> room) {
  Received received;
  os::RightsMessage<1> message(room.data(), room.size());
  message.expect();
  const auto ask = [&] {
    return os::call(SYS_recvmsg, socket_.get(), os::address(&message.header()), MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  };
  long got = ask();
  // If the peer closed the socket with packets unread, the kernel reports that once, before the packets that the peer
  // has sent.
  if (got == -ECONNRESET) got = ask();
  if (got == -EAGAIN || got == -EINTR) return received;
  if (got >= 0) take_descriptor(message, received);
  // An empty packet looks like the peer's end. This library sends no empty packets.
  received.kind = got <= 0 ? Received::Kind::kGone : Received::Kind::kPacket;
  if (got <= 0) return received;
  received.bytes = static_cast<std::size_t>(got);
  received.cut = message.lacks_bytes();
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
