#include "socket/family/pumped.h"

#include <sys/socket.h>

#include <memory>
#include <utility>

#include "os/own/let_others_run.h"
#include "socket/family/receivers.h"
#include "socket/objects.h"
#include "socket/options/options.h"
#include "socket/stream/stream_calls.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace {

// A connect() that did not wait has perhaps reported nothing yet (Progress::kConnecting).
bool stands(const Socket& socket) {
  const tcp::Tcb* const tcb = connection_of(socket);
  if (tcb == nullptr) return false;
  const tcp::State state = tcp_engine().state(*tcb);
  return state != tcp::State::kSynSent && state != tcp::State::kSynReceived && state != tcp::State::kClosed;
}

constexpr std::int32_t kForbidden = -1;  // for PumpedAt::number, before the connection moves

bool is_forbidden(const Socket& socket) {
  return socket.details != nullptr && socket.details->pump.number == kForbidden;
}

bool can_move(const Socket& socket) {
  return socket.alive && !is_forbidden(socket) && !socket.ending && stands(socket) && socket.items == nullptr &&
         socket.pending_error == 0 && (socket.status & O_ASYNC) == 0 && tcp_engine().error(*socket.tcb) == Error::kNone;
}

/// Waits for the copies to or from the socket that are under way. Other threads of this process make none: it has one
/// thread.
void await_copies(Guard& guard, const Socket& socket) {
  while (socket.has(kReading | kWriting)) {
    guard.pause();
    let_others_run();
    guard.resume();
  }
}

}  // namespace

bool has_pumpable_alone() {
  constexpr std::size_t kMost = 16;
  const Guard guard(shard());
  if (objects == nullptr) return false;
  const std::uint32_t slot = shard().family().slot();
  std::size_t mine = 0, pumpable = 0;
  objects->sockets.for_each([&](const Socket& socket) {
    if (!is_on_wire(socket) || socket.references.of(slot) == 0) return;
    if (has_other_receiver(socket)) return;  // a listener of the master's, to which it leaves that
    mine++;
    pumpable += can_move(socket) ? 1U : 0U;
  });
  return mine != 0 && mine == pumpable && mine <= kMost;
}

bool is_pumpable(File& file) {
  const Guard guard(shard());
  return file.kind == FileKind::kStream && can_move(socket_of(file));
}

void forbid_pump(File& file) {
  const Guard guard(shard());
  if (!file.alive || file.kind != FileKind::kStream) return;
  Socket& socket = socket_of(file);
  if (socket.path == Path::kPumped) return;
  if (socket.details == nullptr) socket.details = objects->details.allocate();
  if (socket.details != nullptr) std::construct_at(&socket.details->pump, PumpedAt{0, kForbidden, 0, 0});
}

File* make_pumped(File& file, PumpedSocket& described) {
  const Guard guard(shard());
  Socket& socket = socket_of(file);
  if (file.kind != FileKind::kStream || !can_move(socket)) return nullptr;
  if (socket.details == nullptr) socket.details = objects->details.allocate();
  Socket* const pumped = socket.details == nullptr ? nullptr : objects->sockets.allocate();
  if (pumped == nullptr) return nullptr;
  const tcp::Tcb& tcb = *socket.tcb;
  described = {.name = {socket.domain, tcp_engine().local(tcb), tcp_engine().remote(tcb)},
               .status = static_cast<std::uint16_t>(socket.status & O_NONBLOCK),
               .receive_timeout_ms = socket.receive_timeout_ms,
               .send_timeout_ms = socket.send_timeout_ms,
               .low_water = socket.low_water,
               .shut_receive = socket.has(kShutReceive),
               .shut_send = socket.has(kShutSend),
               .keep_alive = tcp_options(socket).keep_alive,
               .aborts = socket.linger_s == 0};
  pumped->path = Path::kBypass;
  pumped->progress = Progress::kConnected;
  pumped->domain = socket.domain;
  pumped->status = O_NONBLOCK;
  pumped->linger_s = 0;  // if the pump is killed, what it has taken from either side is lost
  own_first(*pumped);
  return pumped;
}

void move_to_pump(File& file, File& pumped, const PumpedAt& at) {
  Guard guard(shard());
  Socket& from = socket_of(file);
  Socket& to = socket_of(pumped);
  await_copies(guard, from);
  std::construct_at(&from.details->pump, at);
  tcp::Tcb* const tcb = std::exchange(from.tcb, nullptr);
  from.path = Path::kPumped;
  from.pumped.store(true, std::memory_order_release);
  to.flags = from.flags;
  to.tcb = tcb;
  if (tcb != nullptr) tcb->event.user = &to;
  signal(from, kEverything);
  signal(to, kEverything);
}

PumpedAt where_pumped(File& file) {
  const Guard guard(shard());
  const Socket& socket = socket_of(file);
  return file.alive && socket.details != nullptr ? socket.details->pump : PumpedAt{};
}

bool has_connection(File& pumped) {
  const Guard guard(shard());
  return connection_of(socket_of(pumped)) != nullptr;
}

bool is_awaited(File& file) {
  const Guard guard(shard());
  return file.references.total() != file.references.of(shard().family().slot());
}

void set_pumps_end(File& pumped, PumpsEnd end) {
  const Guard guard(shard());
  Socket& socket = socket_of(pumped);
  socket.linger_s = end == PumpsEnd::kAborts ? 0 : -1;
}

void tell_pump(File& file) {
  if (file.pumped.load(std::memory_order_relaxed)) signal(file, kHangUp);
}

// A call that still waits in another process for the old object is to return, and to be made anew.
std::uint32_t pumped_bits(const Socket& socket) {
  const Family& family = shard().family();
  const bool is_pump = socket.details->pump.pid == shard().family().own().pid.load(std::memory_order_relaxed);
  if (!is_pump) return kIn | kOut | kError | kHangUp;
  return socket.references.total() == socket.references.of(family.slot()) ? kHangUp : 0U;
}

}  // namespace bypass::socket
