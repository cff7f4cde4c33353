#include "socket/family/move_sockets.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "socket/datagram/datagram.h"
#include "socket/family/doorbell.h"
#include "socket/family/receivers.h"
#include "socket/family/steering.h"
#include "socket/objects.h"
#include "socket/options/options.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/kernel_sleep.h"
#include "socket/wait/wait.h"
#include "stack/tcp/open/listener.h"

namespace bypass::socket {

namespace {

/// What a listener or a datagram socket was like. Links to other objects of the arena are left out.
struct Noted {
  int fd;
  FileKind kind;
  Path path;
  Endpoint local;
  std::uint8_t domain;
  std::uint16_t status;
  std::uint32_t flags, receive_timeout_ms, send_timeout_ms, low_water;
  std::int32_t linger_s;
  Details details;
};
std::vector<Noted> noted;

/// Whether the socket hears of peers by itself, as a listener does and a datagram socket with a port. Then it can be
/// served elsewhere.
bool is_receiver(const Socket& socket) {
  if (!socket.alive || socket.ending || socket.details == nullptr) return false;
  return listener_of(socket) != nullptr || binding_of(socket) != nullptr;
}

Endpoint local_of(const Socket& socket) {
  return socket.kind == FileKind::kListener ? socket.listener->local : udp_engine().local(*socket.binding);
}

bool is_same(const Socket& socket, const Noted& wanted) {
  if (!is_receiver(socket) || socket.kind != wanted.kind) return false;
  return socket.details->kernel_inode == wanted.details.kernel_inode && local_of(socket) == wanted.local;
}

Socket* find(const Noted& wanted) {
  Socket* found = nullptr;
  objects->sockets.for_each([&](Socket& socket) {
    if (is_same(socket, wanted)) found = &socket;
  });
  return found;
}

void describe(Socket& socket, const Noted& from) {
  socket.kind = from.kind;
  socket.domain = from.domain;
  socket.status = from.status;
  socket.flags = from.flags;
  socket.receive_timeout_ms = from.receive_timeout_ms;
  socket.send_timeout_ms = from.send_timeout_ms;
  socket.low_water = from.low_water;
  socket.linger_s = from.linger_s;
  *socket.details = from.details;
}

/// Opens the protocol's part of the socket. False: there is no memory for it, or another socket has its address there.
bool open_half(Socket& socket, const Noted& from) {
  if (from.kind == FileKind::kDatagram) {
    const auto binding = open_datagram_half(socket, from.local);
    if (!binding.ok()) return false;
    socket.binding = *binding;
    if (!socket.details->peer.address.is_any()) udp_engine().connect(**binding, socket.details->peer);
    return true;
  }
  const bool shared = socket.has(kReusePort);
  const auto listener = tcp_engine().listen(from.local, from.details.backlog, from.details.tcp, &socket, shared);
  if (listener.ok()) socket.listener = *listener;
  return listener.ok();
}

/// Whether this process has one that shares the address with it (socket(7), SO_REUSEPORT), to which its part comes.
bool has_one_of_its_group(const Socket& socket) {
  if (!is_receiver(socket) || !socket.has(kReusePort)) return false;
  const std::uint32_t slot = shard().family().slot();
  return objects->sockets.any_of([&](const Socket& other) {
    return other.references.of(slot) != 0 && is_receiver(other) && other.kind == socket.kind && other.has(kReusePort) &&
           local_of(other) == local_of(socket);
  });
}

/// Null: it cannot be there.
Socket* make(const Noted& from) {
  Socket* const socket = objects->sockets.allocate();
  Details* const details = objects->details.allocate();
  if (socket != nullptr) socket->details = details;
  if (socket != nullptr && details != nullptr) {
    describe(*socket, from);
    if (open_half(*socket, from)) {
      socket->path = from.path;
      return socket;
    }
  }
  if (details != nullptr) objects->details.free(details);
  if (socket != nullptr) objects->sockets.free(socket);
  return nullptr;
}

bool hears_kernel(const Socket& socket) {
  if (socket.path != Path::kDual) return false;
  return socket.kind != FileKind::kDatagram || !connected_to_bypass(socket);
}

/// The driver refers to the socket from the first moment on. So what waits in its queue does not depend on the process
/// that brings it.
Socket* make_held(const Noted& from) {
  const std::uint32_t driver = shard().wires().owner_slot();
  Socket* const socket = make(from);
  if (socket != nullptr && driver != kNoSlot) (void)socket->references.add(objects->memory, driver);
  return socket;
}

}  // namespace

bool has_only_what_moves() {
  const Guard guard(shard());
  const std::uint32_t slot = shard().family().slot();
  if (objects == nullptr || objects->epolls.any_of([=](const Epoll& set) { return set.references.of(slot) != 0; }))
    return false;
  return !objects->sockets.any_of([](const Socket& socket) {
    if (!is_on_wire(socket)) return false;
    const bool is_held_back = socket.kind == FileKind::kDatagram && socket.details->corked != nullptr;
    return !is_receiver(socket) || is_held_back || socket.items != nullptr || has_other_poller(socket);
  });
}

bool has_all_on_wire() {
  const Guard guard(shard());
  const std::uint32_t slot = shard().family().slot();
  return objects == nullptr || !objects->sockets.any_of([slot](const Socket& socket) {
    const bool is_anothers = is_on_wire(socket) && !socket.references.empty() && socket.references.of(slot) == 0;
    return is_anothers && !has_one_of_its_group(socket);
  });
}

void note_socket(File& file, int fd) {
  const Guard guard(shard());
  if (file.kind == FileKind::kEpoll || !is_receiver(socket_of(file))) return;
  const Socket& socket = socket_of(file);
  noted.push_back({fd, socket.kind, socket.path, local_of(socket), socket.domain, socket.status, socket.flags,
                   socket.receive_timeout_ms, socket.send_timeout_ms, socket.low_water, socket.linger_s,
                   *socket.details});
  Details& details = noted.back().details;
  details.receiver = details.poller = 0;
  details.local = nullptr;
  details.corked = nullptr;
}

void drop_queued(Context& context) {
  if (objects == nullptr) return;
  const std::uint32_t slot = shard().family().slot();
  objects->sockets.for_each([&](const Socket& socket) {
    udp::Binding* const binding = socket.references.of(slot) != 0 ? binding_of(socket) : nullptr;
    while (binding != nullptr && udp_engine().queued(*binding) != 0) udp_engine().pop(context, *binding);
  });
}

void bring_sockets(void (*enter)(int fd, File* file)) {
  for (const Noted& one : noted) {
    Socket* socket = nullptr;
    {
      const Guard guard(shard());
      socket = objects == nullptr ? nullptr : find(one);
      if (socket == nullptr && objects != nullptr) socket = make_held(one);
      if (socket != nullptr && !socket->references.add(objects->memory, shard().family().slot())) socket = nullptr;
      if (socket != nullptr && hears_kernel(*socket)) watch_kernel_half(*socket, one.fd);
    }
    enter(one.fd, socket);
  }
  noted.clear();
}

bool hold_sockets(std::vector<std::uint64_t> (*open_sockets)()) {
  bool holds_alone = false;
  std::vector<std::uint64_t> open;  // read after a listener is seen to be nobody else's, and while nobody can bring one
  Guard guard(shard());
  if (objects == nullptr) return false;
  const std::uint32_t slot = shard().family().slot();
  objects->sockets.for_each([&](Socket& socket) {
    if (!is_receiver(socket)) return;
    if (socket.references.of(slot) == 0) (void)socket.references.add(objects->memory, slot);
    if (socket.references.total() != socket.references.of(slot)) return;
    if (open.empty()) open = open_sockets();
    if (std::ranges::find(open, socket.details->kernel_inode) != open.end()) return (void)(holds_alone = true);
    (void)socket.references.drop(objects->memory, slot);
    socket.ending = true;
    end_if_unused(guard, socket);
  });
  return holds_alone;
}

void forget_own_halves() {
  thread_signals.in_lock = 0;
  forget_sleep();
  forget_waiter();
  forget_doorbells();
  forget_kernel_halves();
  forget_call_descriptor();
  forget_placeholders();
  shard().forget_threads();
  forget_numbers();
}

}  // namespace bypass::socket
