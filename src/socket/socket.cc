#include "socket/socket.h"

#include <netinet/in.h>

#include <atomic>
#include <utility>

#include "os/errno_map.h"
#include "socket/api.h"
#include "socket/family/kin.h"
#include "socket/family/pumped.h"
#include "socket/family/steering.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/stream/stream_calls.h"
#include "socket/wait/async.h"
#include "socket/wait/epoll.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

namespace {

constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

bool is_ours(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  const int kind = type & ~kTypeFlags;
  if (kind == SOCK_STREAM) return protocol == 0 || protocol == IPPROTO_TCP;
  return kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
}

// They are taken off the socket first: after a death in between nobody may free them a second time.
void free_details(Socket& socket) {
  Details* const details = std::exchange(socket.details, nullptr);
  if (details == nullptr) return;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (details->local != nullptr) objects->locals.free(details->local);
  objects->details.free(details);
}

}  // namespace

void end_file(Guard& guard, File& file) {
  forget_target(file);
  file.alive = false;
  if (file.kind == FileKind::kEpoll) {
    auto& epoll = static_cast<Epoll&>(file);
    end_epoll(epoll);
    objects->epolls.free(&epoll);
    return;
  }
  Socket& socket = socket_of(file);
  end_socket(guard, socket);
  free_details(socket);
  objects->sockets.free(&socket);
}

namespace {

bool must_linger(const Socket& socket) {
  return connection_of(socket) != nullptr && socket.linger_s > 0 && socket.users == 0;
}

}  // namespace

void give_to_kernel(Guard&, Socket& socket) {
  move_items_to_kernel(socket, kernel_half_state(socket).number);
  unwatch_kernel_half(socket);
  socket.path = Path::kKernel;
  signal_idle(socket);
}

void end_socket(Guard& guard, Socket& socket) {
  calls_of(socket).end(guard, socket);
  unwatch_kernel_half(socket);
  Context& ctx = guard.context();
  if (socket.kind == FileKind::kListener) {
    if (socket.listener != nullptr) tcp_engine().close_listener(ctx, *socket.listener);
  } else if (socket.kind == FileKind::kDatagram) {
    if (socket.binding != nullptr) udp_engine().close(ctx, *socket.binding);
    if (socket.details != nullptr) drop_corked(*socket.details);
  } else if (socket.tcb != nullptr) {
    if (socket.linger_s == 0)
      stream::abort(ctx, *socket.tcb);
    else
      stream::close(ctx, *socket.tcb);
  }
  socket.tcb = nullptr;
}

void end_if_unused(Guard& guard, File& file) {
  if (file.alive && file.ending && file.users == 0) end_file(guard, file);
}

Pin::~Pin() {
  {
    const ShortHold hold(shard());
    if (hold.held() && !file_.ending) [[likely]] {
      hold_end(file_);
      return;
    }
  }
  Guard guard(shard());
  hold_end(file_);
  end_if_unused(guard, file_);
}

void own_first(File& file) {
  (void)file.references.add(objects->memory, shard().family().slot());  // the first one's place is in the object
}

namespace {

/// One number of this process less. True: it was the last one of all.
bool drop_reference(File& file) {
  return file.references.remove(objects->memory, shard().family().slot());
}

void number_goes_away(File& file, int fd) {
  if (file.kind != FileKind::kEpoll) calls_of(file).number_goes(socket_of(file), fd);
  number_goes(file, fd);
}

// The object stays, for other numbers of ours or for other processes.
void drop_number(File& file, int fd) {
  drop_reference(file);
  tell_pump(file);
  if (file.references.of(shard().family().slot()) == 0) {
    if (file.kind == FileKind::kListener) call_driver();
    if (file.kind != FileKind::kEpoll) calls_of(file).forget(socket_of(file));
    return forget_kernel_half(file);
  }
  if (fd >= 0) number_goes_away(file, fd);
  if (file.kind == FileKind::kEpoll && kernel_half_state(file).set_number == fd) note_set_number(file, -1);
}

// Other processes have the object, and this one loses its last number, though it may have sets that watch the object.
void leave_items_here(Guard& guard, File& file, int fd) {
  if (!is_watched_here(file)) return;
  // The kernel must have what it is to report. A local connection that others keep never leaves the kernel again.
  if (file.kind != FileKind::kEpoll) calls_of(file).leave(guard, socket_of(file));
  if (file.alive && !file.ending) keep_items_in_kernel(file, fd);
}

// `fd` is about to be closed.
void end_keeping_number(Guard& guard, File& file, int fd) {
  if (file.kind == FileKind::kEpoll) return end_if_unused(guard, file);
  const NumberKeeper number(socket_of(file));
  end_if_unused(guard, file);
  number.keep(fd);
}

}  // namespace

bool is_our_kind(int domain, int type, int protocol) {
  return has_shard() && is_ours(domain, type, protocol);
}

File* open_socket(int fd, int domain, int type, int protocol) {
  (void)fd;
  if (!is_our_kind(domain, type, protocol)) return nullptr;
  Guard guard(shard());
  if (!prepare_objects(shard())) return nullptr;
  Socket* socket = objects->sockets.allocate();
  Details* details = objects->details.allocate();
  if (socket == nullptr || details == nullptr) {
    if (socket != nullptr) objects->sockets.free(socket);
    if (details != nullptr) objects->details.free(details);
    return nullptr;
  }
  const bool stream = (type & ~kTypeFlags) == SOCK_STREAM;
  socket->kind = stream ? FileKind::kStream : FileKind::kDatagram;
  socket->path = Path::kUndecided;
  socket->domain = static_cast<std::uint8_t>(domain);
  socket->status = (type & SOCK_NONBLOCK) != 0 ? O_NONBLOCK : 0;
  socket->details = details;
  own_first(*socket);
  return socket;
}

File* open_epoll(int fd) {
  if (!has_shard()) return nullptr;
  Guard guard(shard());
  if (!prepare_objects(shard())) return nullptr;
  Epoll* epoll = objects->epolls.allocate();
  if (epoll == nullptr) return nullptr;
  epoll->kind = FileKind::kEpoll;
  own_first(*epoll);
  note_set_number(*epoll, fd);
  return epoll;
}

void note_unseen_items(File& epoll) {
  static_cast<Epoll&>(epoll).kernel_items.store(true, std::memory_order_relaxed);
}

void note_number(File& file, int fd) {
  file.number.store(fd, std::memory_order_relaxed);
}

void retain(File& file) {
  Guard guard(shard());
  // Without memory for one more process, either the process has a reference already, or only the kernel has the number.
  if (file.alive) (void)file.references.add(objects->memory, shard().family().slot());
}

namespace {

int release_number(File& file, int fd) {
  {
    Guard guard(shard());
    if (!file.alive || file.ending) return 0;
    // If a reference is not this process's, it is another one's: this process has left its family, and is about to end.
    if (file.references.total() > 1 || file.references.of(shard().family().slot()) == 0) {
      if (fd >= 0 && file.references.of(shard().family().slot()) == 1) leave_items_here(guard, file, fd);
      drop_number(file, fd);
      return 0;
    }
    if (file.kind == FileKind::kEpoll || !must_linger(socket_of(file))) {
      drop_reference(file);
      file.ending = true;
      if (fd >= 0 && file.users != 0) number_goes_away(file, fd);
      end_keeping_number(guard, file, fd);
      return 1;
    }
    hold(file);
  }
  {
    const CancellationOff off;  // the object must end
    linger(socket_of(file));
  }
  Guard guard(shard());
  hold_end(file);
  if (!drop_reference(file)) return 0;  // meanwhile it was shared with a forked child
  file.ending = true;
  end_keeping_number(guard, file, fd);
  return 1;
}

}  // namespace

// The next socket with this number must not find the device's rule for this one.
int release(File& file, int fd) {
  const bool steered_by_number = kind(file) == FileKind::kListener || kind(file) == FileKind::kDatagram;
  const int last = release_number(file, fd);
  if (steered_by_number && last != 0) shard().await_steering();
  return last;
}

void number_closes(File& file, int fd) {
  Guard guard(shard());
  if (file.alive && !file.ending) number_goes_away(file, fd);
}

FileKind kind(const File& file) {
  return file.kind.load(std::memory_order_relaxed);
}

bool decided_for_kernel(const File& file) {
  return kind(file) != FileKind::kEpoll && socket_of(file).path.load(std::memory_order_relaxed) == Path::kKernel;
}

namespace {
std::atomic<int> placeholders[2] = {-1, -1};
}

void forget_placeholders() {
  for (std::atomic<int>& place : placeholders) place.store(-1, std::memory_order_relaxed);
}

int shadow_placeholder(int domain) {
  std::atomic<int>& place = placeholders[domain == AF_INET6 ? 1 : 0];
  int fd = place.load(std::memory_order_acquire);
  if (fd >= 0) return fd;
  fd = kernel->socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
  fd = policy.own_descriptor(fd);
  if (fd < 0) return fd;
  int expected = -1;
  if (place.compare_exchange_strong(expected, fd)) return fd;
  close_own(fd);
  return expected;
}

}  // namespace bypass::socket
