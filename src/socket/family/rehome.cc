#include "socket/family/rehome.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "socket/family/doorbell.h"
#include "socket/family/steering.h"
#include "socket/family/takers.h"
#include "socket/objects.h"
#include "socket/options.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/kernel_sleep.h"
#include "socket/wait/wait.h"
#include "stack/tcp/open/listener.h"

namespace bypass::socket {

namespace {

/// A listener as it was: what lies beside it in an arena is left out.
struct Noted {
  int fd;
  Path path;
  Endpoint local;
  std::uint8_t domain;
  std::uint16_t status;
  std::uint32_t flags, receive_timeout_ms, send_timeout_ms, low_water;
  std::int32_t linger_s;
  Details details;
};
std::vector<Noted> noted;

bool is_same(const Socket& socket, const Noted& wanted) {
  if (!socket.alive || socket.ending || listener_of(socket) == nullptr || socket.details == nullptr) return false;
  return socket.details->kernel_inode == wanted.details.kernel_inode && socket.listener->local == wanted.local;
}

Socket* find(const Noted& wanted) {
  Socket* found = nullptr;
  objects->sockets.for_each([&](Socket& socket) {
    if (is_same(socket, wanted)) found = &socket;
  });
  return found;
}

void describe(Socket& socket, const Noted& from) {
  socket.kind = FileKind::kListener;
  socket.domain = from.domain;
  socket.status = from.status;
  socket.flags = from.flags;
  socket.receive_timeout_ms = from.receive_timeout_ms;
  socket.send_timeout_ms = from.send_timeout_ms;
  socket.low_water = from.low_water;
  socket.linger_s = from.linger_s;
  *socket.details = from.details;
}

/// Null: there is no memory for it, or its address is another one's there.
Socket* make(const Noted& from) {
  Socket* const socket = objects->sockets.allocate();
  Details* const details = objects->details.allocate();
  const auto listener = socket == nullptr || details == nullptr
                            ? Result<tcp::Listener*>(Error::kNoMemory)
                            : tcp_engine().listen(from.local, from.details.backlog, from.details.tcp, socket,
                                                  (from.flags & kReusePort) != 0);
  if (!listener.ok()) {
    if (details != nullptr) objects->details.free(details);
    if (socket != nullptr) objects->sockets.free(socket);
    return nullptr;
  }
  socket->details = details;
  describe(*socket, from);
  socket->listener = *listener;
  socket->path = from.path;
  return socket;
}

/// The driver refers to it from the first moment on: what waits in its queue does not depend on the one that brings it.
Socket* make_held(const Noted& from) {
  const std::uint32_t driver = shard().wires().owner_slot();
  Socket* const socket = make(from);
  if (socket != nullptr && driver != kNoSlot) (void)socket->references.add(objects->memory, driver);
  return socket;
}

}  // namespace

bool has_listeners_alone() {
  const Guard guard(shard());
  const std::uint32_t slot = shard().family().slot();
  if (objects == nullptr || objects->epolls.any_of([=](const Epoll& set) { return set.references.of(slot) != 0; }))
    return false;
  return !objects->sockets.any_of([](const Socket& socket) {
    if (!is_on_wire(socket)) return false;
    return socket.kind != FileKind::kListener || socket.items != nullptr || is_polled_by_another(socket);
  });
}

void note_listener(File& file, int fd) {
  const Guard guard(shard());
  if (file.kind != FileKind::kListener || listener_of(socket_of(file)) == nullptr) return;
  const Socket& socket = socket_of(file);
  noted.push_back({fd, socket.path, socket.listener->local, socket.domain, socket.status, socket.flags,
                   socket.receive_timeout_ms, socket.send_timeout_ms, socket.low_water, socket.linger_s,
                   *socket.details});
  noted.back().details.taken_by = noted.back().details.polled_by = 0;
  noted.back().details.local = nullptr;
  noted.back().details.corked = nullptr;
}

void bring_listeners(void (*enter)(int fd, File* file)) {
  for (const Noted& one : noted) {
    Socket* socket = nullptr;
    {
      const Guard guard(shard());
      socket = objects == nullptr ? nullptr : find(one);
      if (socket == nullptr && objects != nullptr) socket = make_held(one);
      if (socket != nullptr && !socket->references.add(objects->memory, shard().family().slot())) socket = nullptr;
      if (socket != nullptr && one.path == Path::kDual) watch_kernel_half(*socket, one.fd);
    }
    enter(one.fd, socket);
  }
  noted.clear();
}

bool hold_listeners(std::vector<std::uint64_t> (*open_sockets)()) {
  bool holds_alone = false;
  std::vector<std::uint64_t> open;  // read after a listener is seen to be nobody else's, and while nobody brings one
  Guard guard(shard());
  if (objects == nullptr) return false;
  const std::uint32_t slot = shard().family().slot();
  objects->sockets.for_each([&](Socket& socket) {
    if (!socket.alive || socket.ending || listener_of(socket) == nullptr || socket.details == nullptr) return;
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
