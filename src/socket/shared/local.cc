#include "socket/shared/local.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>

#include "observe/reasons.h"
#include "os/os.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/shared/local_kernel.h"
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

/// After an attempt that found nobody, the next one comes after so many times the number of calls.
constexpr std::uint32_t kLater = 4;
constexpr std::uint8_t kMostAttempts = 3;
constexpr Duration kAttempt = std::chrono::milliseconds(500);
/// The ring of each direction. If the reader stays away, bytes that do not fit go over the kernel: relieve_full_ring().
constexpr std::uint64_t kRing = std::uint64_t{256} << 10;

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

// --- Where connections begin

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

namespace {

/// Ends further attempts; each paired connection leaves at its next call or tick. Lock held.
void ask_all_to_leave() {
  shared_memory_ended.store(true);
  for_each_local_link([](LocalLink& link) { link.socket->leave_asked.store(true); });
  local_policy.call_progress();
}

}  // namespace

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

// --- Pairing

namespace {

/// Records the reason under the listener's address: the other address differs for each connection.
void tell(int fd, bool client, observe::Reason reason, const char* detail) {
  const Endpoint address = client ? kernel_peer(fd) : kernel_name(fd);
  policy.record_why_at(fd, static_cast<unsigned>(reason), address, detail);
}

void report_refusal(int fd, bool client, const char* detail) {
  tell(fd, client, observe::Reason::kNoSharedMemory, detail);
}

/// Whether the program has an io_uring, by which it may read any descriptor, made by direct system calls that nobody
/// saw. Where the search takes long it is not made for each connection: it uses at most a hundredth of the time.
/// Releases the lock meanwhile.
bool finds_io_uring(Guard& guard, Socket& socket) {
  static Instant next{};
  const Instant before = shard().clock().now();
  if (before < next) return false;
  next = kNever;  // no other thread searches until this one has finished
  hold(socket);
  guard.pause();
  const bool found = has_io_uring();
  const Duration taken = shard().clock().now() - before;
  guard.resume();
  hold_end(socket);
  next = before + 100 * taken;
  return found;
}

/// Watches the descriptor on which the link is heard now: a listener becomes a channel. Another object may have got the
/// same number by now.
void watch_link(Socket& socket, LocalLink& link, int fd) {
  if (link.watched && link.watched_fd != fd) unwatch_channel(link.watched_fd);
  if (link.watched_fd != fd) signal_idle(socket);
  link.watched = fd >= 0 && watch_channel(socket, fd);
  link.watched_fd = fd;
}

void begin_attempt(Socket& socket, int fd, Instant now) {
  LocalEnd& end = end_of(socket);
  if (!has_numbers_for_link(now)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "the process has too few descriptors left (RLIMIT_NOFILE, ulimit -n)");
  }
  if (is_shared(socket)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "another process has the socket, too");
  }
  if (has_peek_offset(fd)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "SO_PEEK_OFF is set");
  }
  if (is_bound_below_ring(fd)) {
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "SO_SNDBUF or TCP_NOTSENT_LOWAT is small, and so is the peer's SO_RCVBUF");
  }
  end.attempts++;
  LocalLink* const link = make_local_link(socket);
  if (link == nullptr) return;
  watch_kernel_half(socket, fd);
  if (!has_kernel_half(socket)) return drop_local_link(*link);
  if (!may_pass_messages()) {
    drop_local_link(*link);
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "the process may not call sendmsg() and recvmsg()");
  }
  if (!local_policy.need_progress()) {
    drop_local_link(*link);
    end.stage = Stage::kOver;
    return report_refusal(fd, end.client, "the kernel refuses the process a progress thread");
  }
  link->tcp = fd;
  if (!end.client) take_timeouts(socket, fd);  // the listener's values, which only the kernel has had until now
  end.stage = Stage::kPairing;
  link->pairing.begin(local_policy.directory->folder(), fd, {kRing, kRing}, now, now + kAttempt);
  step_pairing(socket, *link, now);
}

void give_up_pairing(Socket& socket, LocalLink& link, shm::Refusal refusal, const char* why) {
  LocalEnd& end = end_of(socket);
  link.pairing.give_up(refusal);
  end.refusal = refusal;
  const bool again = refusal == shm::Refusal::kTimedOut && end.attempts < kMostAttempts;
  if (!again) report_refusal(link.tcp, end.client, why);
  if (!again) local_counts.refused++;
  drop_local_link(link);
  end.stage = again ? Stage::kLooking : Stage::kOver;
  signal_idle(socket);
}

}  // namespace

void step_pairing(Socket& socket, LocalLink& link, Instant now) {
  LocalEnd& end = end_of(socket);
  using State = shm::Pairing::State;
  // Stops the attempt if other processes have got the socket, as they know nothing of it. Once the peer has heard that
  // this end is ready, it would write into memory that nobody reads.
  if (is_shared(socket))
    return give_up_pairing(socket, link, shm::Refusal::kNoResources, "another process has the socket, too");
  const State state = link.pairing.step(now);
  if (state == State::kWaiting) return watch_link(socket, link, link.pairing.descriptor());
  if (state == State::kRefused) {
    const shm::Refusal refusal = link.pairing.refusal();
    return give_up_pairing(socket, link, refusal, shm::to_string(refusal));
  }
  link.segment = link.pairing.take_segment();
  link.channel = link.pairing.take_channel();
  link.out = link.segment.outgoing();
  link.in = link.segment.incoming();
  end.stage = Stage::kPaired;
  end.id = objects->sockets.id_of(&socket);
  local_counts.shared++;
  if (socket.has(kShutSend)) say_shut(link, shut_word(socket));
  begin_holding(socket, link.tcp);
  take_buffers(socket, link, link.tcp);  // before OPEN, as the peer may write after it
  const bool host = link.pairing.role() == shm::Role::kHost;
  if (host) end.may_cut = say(link, shm::SwitchKind::kOpen);
  link.pairing = {};
  socket.details->bound = kernel_name(link.tcp);
  socket.details->peer = kernel_peer(link.tcp);
  watch_link(socket, link, link.channel.descriptor());
  (void)arm_link(socket, link);  // no poll looks at the link yet
  signal_idle(socket);
}

namespace {

bool is_due(const LocalEnd& end) {
  // The accepting side begins a little later, when the other end's name is there.
  constexpr std::uint32_t kBehind = 2;
  const std::uint32_t after = shard().budgets().local_after;
  std::uint32_t calls = after + (end.client ? 0 : std::min(after / 2, kBehind));
  for (std::uint8_t i = 0; i < end.attempts; i++) calls *= kLater;
  return end.calls >= calls;
}

bool may_begin(const LocalEnd& end) {
  return end.stage == Stage::kLooking && end.reads_in_kernel == 0 && end.sends_in_kernel == 0 && is_due(end);
}

}  // namespace

void local_count_call(Guard& guard, Socket& socket, int fd) {
  local_answer(guard, socket);
  LocalEnd& end = end_of(socket);
  end.calls++;
  if (may_begin(end)) {
    if (finds_io_uring(guard, socket)) {
      ask_all_to_leave();
      tell(fd, end.client, observe::Reason::kEscapedIoUring, "found in /proc/self/maps");
    }
    local_answer(guard, socket);
    if (may_begin(end)) begin_attempt(socket, fd, guard.context().now);
  }
  if (end.stage != Stage::kPairing) return;
  LocalLink* const link = local_link(socket);  // null: another process makes the attempt
  if (link != nullptr && link->pairing.next_timeout() <= guard.context().now)
    step_pairing(socket, *link, guard.context().now);
}

bool local_give_up(Guard& guard, Socket& socket) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kOver || socket.users != 0 || socket.waiters != nullptr) return false;
  if (socket.pending_error != 0) return false;
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

// --- The end

namespace {

void reset_on_close(const Socket& socket) {
  const struct linger now { .l_onoff = 1, .l_linger = 0 };
  const int number = kernel_half_state(socket).number;
  if (number >= 0) kernel->setsockopt(number, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

/// Sends what the peer wants back before the end. The time is limited: if a peer asks and does not read, its connection
/// is reset.
void give_back(Socket& socket, LocalLink& link) {
  constexpr Duration kPatience = std::chrono::seconds(1);
  constexpr timespec kTry{0, 100'000'000};
  const Instant latest = shard().clock().now() + kPatience;
  wake_peers();  // it may sleep for room that was freed since
  while (is_returning(socket) && shard().clock().now() < latest) {
    pump_return(socket, link);
    pollfd room{kernel_half_state(socket).number, POLLOUT, 0};
    if (is_returning(socket)) os::call(SYS_ppoll, os::address(&room), 1, os::address(&kTry), 0, 8);
  }
  if (is_returning(socket)) reset_on_close(socket);
}

/// Bytes that were read from the ring come again in the kernel's queue: close() would count them as unread.
void await_skipped(Socket& socket, LocalLink& link) {
  constexpr Duration kPatience = std::chrono::milliseconds(100);
  constexpr timespec kTry{0, 10'000'000};
  const Instant latest = shard().clock().now() + kPatience;
  while (end_of(socket).paths.is_skipping() && shard().clock().now() < latest) {
    pollfd bytes{kernel_half_state(socket).number, POLLIN, 0};
    os::call(SYS_ppoll, os::address(&bytes), 1, os::address(&kTry), 0, 8);
    settle(socket, link);
    if (!is_paired(socket)) return;
  }
}

/// Whether the ring has bytes that come from nowhere else. Bytes after STOP or RESUME are sent over the kernel by the
/// peer, or held back there.
bool is_unread_in_ring(const Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  const std::size_t there = end.consumer.peek(link.in).size();
  return !end.paths.has_stopped_reading() && end.paths.from_ring(there, end.consumer) != 0;
}

/// Whether close() would reset the connection in the kernel, had all bytes gone there: if some are unread, or SO_LINGER
/// requires it.
bool ends_by_reset(Socket& socket, LocalLink& link) {
  const int number = kernel_half_state(socket).number;
  if (is_unread_in_ring(socket, link)) return true;
  int unread = 0;
  if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&unread)) == 0 && unread > 0) return true;
  struct linger how {};
  socklen_t bytes = sizeof how;
  const long r = os::call(SYS_getsockopt, number, SOL_SOCKET, SO_LINGER, os::address(&how), os::address(&bytes));
  return r == 0 && how.l_onoff != 0 && how.l_linger == 0;
}

/// Tells a writer that does not look at its kernel's side that nothing is read any more. What it has written since goes
/// over the kernel and is answered there. With a reset STOP is not sent: the peer's program must see the reset.
void say_end(const Socket& socket, LocalLink& link, bool resets) {
  say_shut(link, resets ? shm::Shut::kReset : shm::Shut::kEnd);
  const LocalEnd& end = end_of(socket);
  if (end.peer_gone || end.paths.is_ending() || end.paths.has_stopped_reading()) return;
  if (shm::claim_stop(link.in, end.paths.resumes_heard()) && !resets)
    // if it cannot be sent, the peer sees the channel's end
    (void)say(link, shm::SwitchKind::kStop, end.consumer.consumed());
}

/// Ends a paired connection. What the peer has to say may end the pair first. Before a reset nothing is returned,
/// because the reset would drop what the kernel has not sent by then. The peer finds in the ring what was written
/// there, followed by the reset.
void end_paired(Socket& socket, LocalLink& link) {
  hear_channel(socket, link);
  if (!is_paired(socket)) return;
  await_skipped(socket, link);
  if (!is_paired(socket)) return;
  const bool resets = ends_by_reset(socket, link);
  if (resets) {
    release_before_reset(socket, link);
    if (!end_of(socket).more_in_kernel) push_held_bytes(kernel_half_state(socket).number);
    reset_on_close(socket);
  } else {
    return_ring_before_end(socket, link);
    give_back(socket, link);
  }
  say_end(socket, link, resets);
}

}  // namespace

void local_end(Guard& guard, Socket& socket) {
  local_answer(guard, socket);
  if (LocalLink* const link = paired_link(socket)) end_paired(socket, *link);
  if (LocalLink* const link = local_link(socket)) end_local_link(socket, *link);
}

void local_forget(Socket& socket) {
  if (LocalLink* const link = local_link(socket)) end_local_link(socket, *link);
}

void local_number_goes(Socket& socket, int fd) {
  LocalLink* const link = local_link(socket);
  if (link == nullptr || link->tcp != fd || end_of(socket).stage != Stage::kPairing) return;
  drop_local_link(*link);
  end_of(socket).stage = Stage::kOver;
  signal_idle(socket);
}

// --- The process's part

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

namespace {
constexpr int kPeerGone = -2;  // stands for the copy of a channel whose peer has gone
}

void local_save_channels() {
  for_each_local_link([](LocalLink& link) {
    link.watched = false;  // the watch set belonged to the parent
    link.active = false;
    if (end_of(*link.socket).stage != Stage::kPaired) return;
    link.watched_fd = link.channel.is_open() ? kernel->fcntl(link.channel.descriptor(), F_DUPFD_CLOEXEC, 0) : kPeerGone;
  });
  new (&active_links) ActiveLinks;
}

// The parent's attempts are closed. Paired connections go on under numbers of this process.
void local_restore_channels() {
  recount_local_links();
  for_each_local_link([](LocalLink& link) {
    const bool paired = end_of(*link.socket).stage == Stage::kPaired;
    const int copy = link.watched_fd;
    link.watched_fd = -1;
    // Their numbers were closed with all of ours: other descriptors may have them by now.
    link.channel.abandon();
    link.pairing.abandon();
    if (paired && copy == kPeerGone) return;  // what the peer has written is still read
    if (!paired || copy < 0) return drop_local_link(link);
    link.channel = shm::Channel(shm::Descriptor::kept(copy));
  });
}

void drop_unadopted_links() {
  const std::uint32_t slot = shard().family().slot();
  for_each_local_link([slot](LocalLink& link) {
    if (local_link(*link.socket) != &link || link.socket->references.of(slot) == 0) drop_local_link(link);
  });
}

void local_adopt(Socket& socket) {
  LocalLink* const link = local_link(socket);
  if (link == nullptr) return;
  watch_link(socket, *link, link->channel.descriptor());
  (void)arm_link(socket, *link);
}

}  // namespace bypass::socket
