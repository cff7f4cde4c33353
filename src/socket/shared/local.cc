#include "socket/shared/local.h"

#include <errno.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <optional>

#include "observe/reasons.h"
#include "os/os.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/shared/local_link.h"
#include "socket/shared/local_path.h"
#include "socket/socket.h"
#include "socket/wait/epoll.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;

constinit LocalPolicy local_policy;
LocalCounts local_counts;

namespace {

std::atomic<bool> shared_memory_ended{false};
std::atomic<bool> adoption_ended{false};  // note_timeout_below_zero()

/// Whether threads that wait for the socket would notice events on the kernel's side.
bool can_be_watched(int fd) {
  if (can_watch_kernel_halves()) return true;
  policy.record_why(fd, static_cast<unsigned>(observe::Reason::kNoSharedMemory),
                    "the kernel gives the process no epoll set");
  return false;
}

}  // namespace

void local_note_listener(int fd) {
  const shm::Directory* const directory = local_policy.directory;
  if (directory == nullptr) return;
  const std::uint16_t port = kernel_name(fd).port;
  if (port != 0) directory->note_listener(port, shm::network_tag(fd));
}

bool local_before_connect(Socket& socket, int fd, const sockaddr* address, socklen_t length) {
  const shm::Directory* const directory = local_policy.directory;
  if (!adopts_accepted() || socket.details == nullptr || socket.has(kForceKernel | kShutReceive | kShutSend))
    return false;
  const std::optional<Endpoint> remote = endpoint_of(address, length);
  if (!remote.has_value() || remote->port == 0 || !local_policy.may_be_local(address)) return false;
  const std::uint32_t network = shm::network_tag(fd);
  if (!directory->note_client_of_listener(remote->port, network)) return false;
  Guard guard(shard());
  if (socket.path != Path::kUndecided || socket.leave_asked.load()) return false;
  if (!can_be_watched(fd)) return false;
  LocalEnd*& end = socket.details->local;
  if (end == nullptr) end = objects->locals.allocate();
  if (end == nullptr) return false;
  *end = {};
  end->stage = Stage::kLooking;
  end->client = true;
  socket.path = Path::kLocal;
  return true;
}

void local_after_connect(Socket& socket, int fd) {
  if (socket.ending || !is_local(socket)) return;  // another thread has ended or changed it
  if (socket.items == nullptr && socket.waiters == nullptr) return;
  watch_kernel_half(socket, fd);
  signal(socket, kEverything);
}

void note_timeout_below_zero() {
  if (adoption_ended.exchange(true)) return;
  policy.record_why(-1, static_cast<unsigned>(observe::Reason::kNoSharedMemory),
                    "accepted connections have a timeout below zero");
}

bool adopts_accepted() {
  return local_policy.directory != nullptr && has_shard() && !shared_memory_ended.load();
}

File* adopt_accepted(int fd, const sockaddr* peer, socklen_t length, int flags) {
  const shm::Directory* const directory = local_policy.directory;
  if (!adopts_accepted() || adoption_ended.load(std::memory_order_relaxed)) return nullptr;
  const std::optional<Endpoint> remote = endpoint_of(peer, length);
  if (!remote.has_value()) return nullptr;
  const Endpoint local = kernel_name(fd);
  if (!remote->address.is_loopback() && remote->address != local.address) return nullptr;
  if (!directory->has_clients(local.port, shm::network_tag(fd)) || !local_policy.may_be_local(peer)) return nullptr;
  Guard guard(shard());
  if (!can_be_watched(fd) || !prepare_objects(shard())) return nullptr;
  Socket* const socket = objects->sockets.allocate();
  Details* const details = objects->details.allocate();
  LocalEnd* const end = objects->locals.allocate();
  if (socket == nullptr || details == nullptr || end == nullptr) {
    if (socket != nullptr) objects->sockets.free(socket);
    if (details != nullptr) objects->details.free(details);
    if (end != nullptr) objects->locals.free(end);
    return nullptr;
  }
  socket->kind = FileKind::kStream;
  socket->path = Path::kLocal;
  socket->progress = Progress::kConnected;
  socket->domain = static_cast<std::uint8_t>(peer->sa_family);
  socket->status = (flags & SOCK_NONBLOCK) != 0 ? O_NONBLOCK : 0;
  socket->details = details;
  details->bound = local;
  details->peer = *remote;
  details->local = end;
  end->stage = Stage::kLooking;
  own_first(*socket);
  return socket;
}

namespace {

/// Sends ring bytes that must go over the kernel. Releases the lock for a short wait.
void await_kernel_room(Guard& guard, Socket& socket) {
  constexpr timespec kTry{0, 50'000'000};
  pollfd room{kernel_half_state(socket).number, POLLOUT, 0};
  hold(socket);
  guard.pause();
  os::call(SYS_ppoll, os::address(&room), 1, os::address(&kTry), 0, 8);
  guard.resume();
  hold_end(socket);
  if (LocalLink* const link = paired_link(socket); link != nullptr && is_returning(socket)) pump_return(socket, *link);
}

bool may_become_local(const File& file) {
  return file.kind == FileKind::kStream && socket_of(file).path == Path::kUndecided;
}

}  // namespace

void leave_shared_memory(File& file, Wait wait) {
  if (may_become_local(file)) return file.leave_asked.store(true);
  if (!is_local(file)) return;
  Guard guard(shard());
  if (!file.alive) return;
  Socket& socket = socket_of(file);
  local_leave(guard, socket);
  constexpr Duration kPatience = std::chrono::seconds(1);
  const Instant latest = shard().clock().now() + kPatience;
  while (wait == Wait::kForRoom && is_local(socket) && is_returning(socket) && shard().clock().now() < latest) {
    await_kernel_room(guard, socket);
    local_leave(guard, socket);
  }
  end_leaving(guard, socket);
}

// Epoll sets hold the socket as the kernel's afterwards. So if this number is closed, the socket stays in the set under
// another process's number, or one that comes back.
void end_leaving(Guard& guard, Socket& socket) {
  if (socket.alive && socket.path == Path::kLocal) (void)local_give_up(guard, socket);
  end_if_unused(guard, socket);
}

void ask_to_leave_shared_memory(File& file) {
  if (!is_local(file) && !may_become_local(file)) return;
  file.leave_asked.store(true);
  if (is_local(file)) local_policy.call_progress();
}

void local_answer(Guard& guard, Socket& socket) {
  const bool asked = socket.leave_asked.load(std::memory_order_relaxed) && socket.leave_asked.exchange(false);
  if (asked || shared_memory_ended.load(std::memory_order_relaxed)) local_leave(guard, socket);
}

bool is_in_kernel(const File& file) {
  if (decided_for_kernel(file)) return true;
  if (!is_local(file)) return false;
  const Stage stage = end_of(socket_of(file)).stage;
  return stage == Stage::kLooking || stage == Stage::kOver;
}

int why_not_kernel(File& file, Transfer transfer) {
  if (file.kind == FileKind::kEpoll) return 0;
  const Guard guard(shard());
  const Path path = socket_of(file).path;
  if (path == Path::kBypass || path == Path::kDual) return ENOSYS;
  if (path != Path::kLocal || is_in_kernel(file)) return 0;
  const shm::CarrierSwitch& paths = end_of(socket_of(file)).paths;
  const bool reads = transfer == Transfer::kRead;
  const bool is_kernels = reads ? paths.has_stopped_reading() && !paths.is_skipping() : paths.has_stopped_writing();
  return is_kernels ? 0 : EAGAIN;
}

/// Ends further attempts; each paired connection leaves at its next call or tick. Lock held.
void ask_all_to_leave() {
  shared_memory_ended.store(true);
  for_each_local_link([](LocalLink& link) { link.socket->leave_asked.store(true); });
  local_policy.call_progress();
}

void end_shared_memory() {
  shared_memory_ended.store(true);
  if (!has_shard() || !has_local_links()) return;
  Guard guard(shard());
  ask_all_to_leave();
  for_each_local_link([&](LocalLink& link) {
    Socket& socket = *link.socket;
    local_answer(guard, socket);
    end_if_unused(guard, socket);  // it was closed while the lock was released
  });
}

bool give_up(File& file) {
  if (is_local(file)) leave_shared_memory(file);
  Guard guard(shard());
  if (decided_for_kernel(file)) return true;
  if (file.kind == FileKind::kEpoll) return static_cast<Epoll&>(file).bypass_items.load() == 0;
  if (socket_of(file).path != Path::kUndecided) return false;
  give_to_kernel(guard, socket_of(file));
  return true;
}

bool local_give_up(Guard& guard, Socket& socket) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kOver || socket.users != 0 || socket.waiters != nullptr) return false;
  if (socket.pending_error != 0 || !can_move_items(socket)) return false;
  if (end.paths.tx() == shm::CarrierSwitch::Tx::kReturning) return false;
  local_forget(socket);
  give_to_kernel(guard, socket);
  return true;
}

void local_tick(Guard& guard) {
  const Instant now = guard.context().now;
  for_each_local_link([&](LocalLink& link) {
    Socket& socket = *link.socket;
    local_answer(guard, socket);
    end_if_unused(guard, socket);
    if (!socket.alive || local_link(socket) != &link) return;  // the lock was released meanwhile
    const Stage stage = end_of(socket).stage;
    if (stage == Stage::kPairing && link.pairing.next_timeout() <= now) step_pairing(socket, link, now);
    if (stage != Stage::kPaired) return;
    note_ring_traffic(end_of(socket), link, now);
    // Another process may have asked the kernel to report room, or may have had another number.
    if (is_returning(socket)) pump_return(socket, link);
    release_when_due(socket, link, now);
    relieve_full_ring(socket, link, now);
  });
}

bool local_wants_tick(const Guard&) {
  bool wants = false;
  const Instant now = shard().clock().now();
  for_each_local_link([&](const LocalLink& link) {
    const LocalEnd& end = end_of(*link.socket);
    const bool leaves = link.socket->leave_asked.load(std::memory_order_relaxed) || shared_memory_ended.load();
    wants = wants || end.wants_room || leaves || may_hold_back(*link.socket, now) || is_returning(*link.socket) ||
            end.stage == Stage::kPairing;
  });
  return wants;
}

bool has_local_links() {
  return local_link_count() != 0;
}

void local_is_waited_for(Socket& socket) {
  if (LocalLink* const link = paired_link(socket)) (void)arm_link(socket, *link);
}

}  // namespace bypass::socket
