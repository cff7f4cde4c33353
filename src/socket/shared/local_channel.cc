// Handles the messages of a connection's peer within the host on the channel, and the channel's end.
// Tests: tests/system/local_faults.py.
#include <array>
#include <cerrno>

#include "fastpath/shm/rendezvous/message.h"
#include "os/os.h"
#include "socket/shared/local_path.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::CarrierSwitch::Tx;
using Rx = shm::CarrierSwitch::Rx;

bool say(LocalLink& link, shm::SwitchKind kind, std::uint64_t count) {
  const shm::SwitchMessage message{kind, count};
  return link.channel.send(std::as_bytes(std::span(&message, 1))) == shm::Channel::Sent::kSent;
}

bool is_unread_by_peer(const Socket& socket, const LocalLink& link) {
  const LocalEnd& end = end_of(socket);
  return link.channel.is_open() && end.paths.tx() == Tx::kRing && !end.stop_heard &&
         link.out.peer->consumed.load(std::memory_order_seq_cst) != end.producer.published();
}

namespace {

// The kernel itself reports the end of the connection, once, at the same time.
void on_gone(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  (void)look_at_rings(socket, link);
  end.peer_gone = true;
  // The peer was killed with bytes of ours unread: in this case the kernel resets a connection. What the peer has
  // written is still read.
  const bool unread = is_unread_by_peer(socket, link) && !has_peer_shut(link, shm::Shut::kReset);
  unread ? reset_behind_bytes(socket) : await_held_of_dead(socket, link);
  unwatch_channel(link.watched_fd);
  link.watched = false;
  close_channel(link);
  // The peer's end has come, so held bytes are sent. If a copy is under way, settle() does this later.
  if (end.producer.held() != 0 && end.paths.tx() == Tx::kRing && !socket.has(kWriting)) abandon_ring(socket, link);
  unread ? signal(socket, kEverything) : signal_idle(socket);
}

void on_message(Socket& socket, const shm::SwitchMessage& message) {
  LocalEnd& end = end_of(socket);
  switch (message.kind) {
    case shm::SwitchKind::kOpen:
      end.may_cut = true;
      break;
    case shm::SwitchKind::kCut:
      if (end.cut_heard) return break_link(socket, "CUT out of turn");
      end.cut_heard = true;
      end.cut_at = message.count;
      break;
    case shm::SwitchKind::kResume:
      if (end.resume_heard) return break_link(socket, "RESUME out of turn");
      end.resume_heard = true;
      end.resume_at = message.count;
      break;
    case shm::SwitchKind::kStop:
      end.stop_heard = true;
      end.stop_at = message.count;
      break;
  }
}

// The host's time limit ended just as this end said that it was ready.
bool is_refused_late(const LocalEnd& end, std::span<const std::byte> said) {
  if (end.may_cut || end.cut_heard || end.paths.tx() != Tx::kKernel || end.paths.rx() != Rx::kKernel) return false;
  const auto message = shm::parse_message(said);
  return message.ok() && message.value.kind == shm::MessageKind::kRefused;
}

// Nothing has left the kernel's connection: it continues as it is.
void leave_unused(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  end.stage = Stage::kOver;
  end_local_link(socket, link);
}

// A wake-up that this call has taken may have been meant for a thread that sleeps.
void pass_wake_on(Socket& socket, LocalLink& link) {
  (void)look_at_rings(socket, link);
  arm_where_needed(socket, link);
}

}  // namespace

// More packets than the kernel queues on such a socket, and than an honest peer needs: wake-ups answer what was armed.
// A peer that sent more while they are read would keep the lock held for ever.
constexpr int kMostHeard = 1024;

bool hear_channel(Socket& socket, LocalLink& link, Hears hears) {
  bool heard = false, woken = false;
  int packets = 0;
  link.channel_readable = false;
  std::array<std::byte, shm::kMessageRoom> room;
  while (link.channel.is_open()) {
    const shm::Channel::Received received = link.channel.receive(room);
    using Kind = shm::Channel::Received::Kind;
    if (received.kind == Kind::kNothing) break;
    if (++packets > kMostHeard) {
      break_link(socket, "the peer sends more messages than it can need to");
      return true;
    }
    if (received.kind == Kind::kWake) {
      link.armed_in = link.armed_out = false;
      woken = true;
      if (hears == Hears::kAll) continue;
      break;
    }
    heard = true;
    if (received.kind == Kind::kGone) {
      on_gone(socket, link);
      break;
    }
    const auto said = std::span(room).first(std::min(received.bytes, room.size()));
    if (is_refused_late(end_of(socket), said)) {
      leave_unused(socket, link);
      return true;
    }
    const auto message = shm::parse_switch(said);
    if (!message.has_value() || received.cut || received.many) {
      break_link(socket, "the peer sent a message that is not valid");
      return true;
    }
    on_message(socket, *message);
    if (!is_paired(socket)) return true;
    settle(socket, link);
    if (!is_paired(socket)) return true;
  }
  if (woken) pass_wake_on(socket, link);
  return heard;
}

void local_on_channel(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link == nullptr) return;
  link->channel_readable = false;
  if (end_of(socket).stage == Stage::kPairing) return step_pairing(socket, *link, shard().clock().now());
  if (is_paired(socket)) hear_earlier_rings(*link);
  hear_channel(socket, *link, Hears::kToWake);
  if (!is_paired(socket)) return;
  (void)look_at_rings(socket, *link);
  touch_link(socket, *link);
}

void local_on_kernel(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link != nullptr && end_of(socket).paths.tx() == Tx::kReturning) pump_return(socket, *link);
}

}  // namespace bypass::socket
