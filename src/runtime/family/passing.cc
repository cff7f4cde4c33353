#include "runtime/family/passing.h"

#include <sys/socket.h>

#include <array>
#include <string_view>

#include "os/net/rights_message.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_work.h"
#include "runtime/family/channel_readers.h"
#include "runtime/host.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "socket/family/kin.h"
#include "socket/family/tickets.h"

namespace bypass::runtime {

namespace {

/// The one datagram in a ticket. Beside it lies the kernel's descriptor.
constexpr std::string_view kWord = "libbypass ticket";

void close_opened(int fd) {
  if (fd >= 0) os::close(fd);
}

/// A Unix socket in which a descriptor of the file lies that `fd` names.
int make_socket_around(int fd) {
  std::array<int, 2> pair{-1, -1};
  if (os::call(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, os::address(pair.data())) != 0) return -1;
  os::RightsMessage<1> message(kWord.data(), kWord.size());
  message.pass({&fd, 1});
  const long sent = os::call(SYS_sendmsg, pair[1], os::address(&message.header()), MSG_NOSIGNAL | MSG_DONTWAIT);
  os::close(pair[1]);
  if (sent == static_cast<long>(kWord.size())) return pair[0];
  os::close(pair[0]);
  return -1;
}

/// The ticket keeps what lies in it: the message that it has come in may only have been looked at (MSG_PEEK), and then
/// it comes again.
int look_beneath(int ticket) {
  std::array<char, kWord.size() + 1> word{};
  os::RightsMessage<1> message(word.data(), word.size());
  message.expect();
  const long n =
      os::call(SYS_recvmsg, ticket, os::address(&message.header()), MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return -1;
  const int fd = message.received()[0];
  if (std::string_view(word.data(), static_cast<std::size_t>(n)) == kWord) return fd;
  close_opened(fd);
  return -1;
}

int option_in(int fd, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return os::call(SYS_getsockopt, fd, SOL_SOCKET, name, os::address(&value), os::address(&length)) == 0 ? value : -1;
}

/// A look into another socket of the program's must change nothing (SO_PEEK_OFF).
bool may_be_ticket(int fd) {
  return option_in(fd, SO_TYPE) == SOCK_DGRAM && option_in(fd, SO_PEEK_OFF) < 0;
}

}  // namespace

bool is_read_by_family(int channel) {
  Process* const p = process();
  if (p == nullptr || socket::is_in_handler() || !p->shard.sharable()) return false;
  const Inside inside;
  return !p->shard.family().own().takes_nothing && is_read_by(p->shard.family(), channel);
}

bool exec_leaves_channel() {
  Process* const p = process();
  if (p == nullptr || p->config.ports.empty() || !p->shard.sharable()) return false;
  const Inside inside;
  return exec_leaves_channel(p->shard.family());
}

int make_ticket(socket::File& file, int fd) {
  Process& p = *process();
  const Inside inside;
  const int ticket = make_socket_around(fd);
  const auto id = ticket < 0 ? std::nullopt : os::unix_socket_id(ticket);
  if (id.has_value() && socket::make_ticket(file, *id)) {
    p.progress.watch_tickets();
    return ticket;
  }
  close_opened(ticket);
  return -1;
}

void close_ticket(int ticket, bool sent) {
  const Inside inside;
  const auto id = os::unix_socket_id(ticket);
  os::close(ticket);
  if (!id.has_value()) return;
  sent ? socket::settle_if_taken(*id) : socket::settle_ticket(*id);
}

std::optional<Taken> take_by_ticket(int fd) {
  const auto id = os::unix_socket_id(fd);
  if (!id.has_value() || !may_be_ticket(fd)) return std::nullopt;
  const Inside inside;
  const int beneath = look_beneath(fd);
  if (beneath < 0) return std::nullopt;
  return Taken{*id, beneath, socket::take_by_ticket(*id)};
}

void go_on_with(const Taken& taken, int fd) {
  Process& p = *process();
  const Inside inside;
  socket::adopt_taken(*taken.object, fd);
  if (!socket::refers_to_wire() || !p.progress.start()) return;
  p.progress.join_family();
  if (!p.config.ports.empty()) p.progress.want_ports();
}

void settle(const Taken& taken) {
  const Inside inside;
  socket::settle_ticket(taken.ticket);
}

void take_nothing() {
  if (Process* const p = process(); p != nullptr) p->shard.family().own().takes_nothing = true;
}

void note_new_program() {
  if (Process* const p = process(); p != nullptr) p->shard.family().note_change();
}

}  // namespace bypass::runtime
