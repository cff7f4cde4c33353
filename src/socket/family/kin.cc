#include "socket/family/kin.h"

#include <limits.h>

#include "os/os.h"
#include "os/own/let_others_run.h"
#include "socket/family/kin_steps.h"
#include "socket/family/move_sockets.h"
#include "socket/family/pumped.h"
#include "socket/objects.h"
#include "socket/shared/local_link.h"
#include "socket/stream/stream_calls.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/kernel_sleep.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace {

// A process that joins a family with a driver comes by itself, not by a fork that the owner could prepare for. So what
// waits for it must lie in the arena already.
std::uint32_t expected_members(const Wires& wires) {
  return wires.keeper.pid.load(std::memory_order_acquire) != 0 ? 1 : 0;
}

}  // namespace

void count_members() {
  Wires& wires = shard().wires();
  const std::uint32_t count = shard().family().count();
  const std::uint32_t members = (count > 0 ? count - 1 : 0) + expected_members(wires);
  if (wires.members.exchange(members, std::memory_order_relaxed) > members) call_driver();
}

namespace {

// The kernel resets a connection that is closed with bytes unread. A reset is sent only once, with a sequence number
// that fits only if everything in flight has arrived. With a dead owner's rings that is lost, and the peer would wait
// for ever. A FIN is repeated. So the bytes are read here.
void leave_nothing_unread(Guard& guard, File& file) {
  if (file.kind != FileKind::kStream) return;
  tcp::Tcb* const tcb = connection_of(socket_of(file));
  if (tcb != nullptr) stream::consume(guard.context(), *tcb, stream::readable(*tcb));
}

/// Tells when one process does not have the listener any more, and others have.
void tell_if_listener_goes(const File& file) {
  if (file.kind == FileKind::kListener) call_driver();
}

/// kDied: another process goes on with the wires. kAllDied: none does, and this one answers peers until all has ended.
enum class Cause : std::uint8_t { kLeaves, kDied, kAllDied };

void drop_references(Guard& guard, File& file, std::uint32_t slot, Cause cause) {
  if (!file.alive || file.references.of(slot) == 0) return;
  if (!file.references.drop(objects->memory, slot)) {
    tell_pump(file);
    return tell_if_listener_goes(file);
  }
  file.ending = true;
  if (cause == Cause::kDied) leave_nothing_unread(guard, file);
  end_if_unused(guard, file);
}

/// Drops all references of a slot. An object without any other reference ends.
void drop_references(Guard& guard, std::uint32_t slot, Cause cause = Cause::kLeaves) {
  for_each_file([&](File& file) { drop_references(guard, file, slot, cause); });
}

}  // namespace

void drop_references_to(Guard& guard, File& file, std::uint32_t slot) {
  drop_references(guard, file, slot, Cause::kLeaves);
}

void call_owner() {
  const std::uint32_t owner = shard().wires().owner_slot();
  if (owner != kNoSlot) collect_wake(WakeTarget::process(owner));
}

bool move_frames(Guard& guard) {
  const auto being_read = [](const void* user) { return static_cast<const Socket*>(user)->has(kReading); };
  while (shard().stack().move_frames_to_arena(guard.context(), being_read) != 0) {
    const bool readers = objects->sockets.any_of([](const Socket& socket) { return socket.has(kReading); });
    if (!readers) return false;  // no memory
    guard.pause();
    let_others_run();
    guard.resume();
  }
  return true;
}

Fork begin_fork() {
  Fork fork;
  if (!shard().sharable()) return fork;
  Guard guard(shard());
  Family& family = shard().family();
  family.note_change();
  fork.reserved = family.reserve();
  if (fork.reserved == kNoSlot && !shard().owns_wires() && sweep_family(guard) != 0) fork.reserved = family.reserve();
  if (fork.reserved == kNoSlot) return fork;
  fork.incarnation = family.incarnation_of(fork.reserved);
  count_members();
  if (!shard().owns_wires() || move_frames(guard)) return fork;
  family.end_reserved(fork.reserved);
  count_members();
  return {};
}

void share_with_child(const Fork& fork, File& file) {
  if (fork.reserved == kNoSlot) return;
  Guard guard(shard());
  if (file.alive && !file.ending) (void)file.references.add(objects->memory, fork.reserved);
}

void end_fork_in_parent(const Fork& fork, std::int32_t child) {
  if (fork.reserved == kNoSlot || child == 0) return;
  Guard guard(shard());
  Family& family = shard().family();
  if (child > 0) {
    family.bind_reserved(fork.reserved, fork.incarnation, static_cast<std::uint32_t>(child));
    // The owner sweeps a child that is killed before it has called the owner itself.
    if (!shard().owns_wires()) call_owner();
    return;
  }
  drop_references(guard, fork.reserved);
  family.end_reserved(fork.reserved);
  count_members();
}

bool join_family(const Fork& fork) {
  thread_signals.serves_the_end = false;
  forget_own_halves();
  return fork.reserved != kNoSlot && shard().family().on_fork_child();
}

bool adopt_number(const Fork& fork, File& file, int fd) {
  Guard guard(shard());
  // The parent did not have the object when it began to fork: another thread has made it since.
  if (!file.alive || file.references.of(fork.reserved) == 0) return false;
  if (!file.references.add(objects->memory, shard().family().slot())) return false;
  if (file.kind == FileKind::kEpoll) note_set_number(file, fd);
  if (file.dual) watch_kernel_half(file, fd);
  if (file.kind != FileKind::kEpoll) calls_of(file).adopt(socket_of(file));
  return true;
}

void end_fork_in_child(const Fork& fork) {
  Guard guard(shard());
  drop_references(guard, fork.reserved);
  shard().family().end_reserved(fork.reserved);
  drop_unadopted_links();
  shard().family().note_change();
  count_members();
  call_owner();
}

void leave_family(Guard& guard) {
  await_wakes();  // until they come, they keep the other end of a connection from being told otherwise
  const std::uint32_t slot = shard().family().slot();
  drop_waiters(guard, slot);
  drop_my_waiter();
  drop_references(guard, slot);
}

namespace {

// Repeats what only a dead process was told, or had still to tell: that connections wait at a listener; that frames or
// an earlier timer wait for the owner of the wires; that bytes wait for the peer of a shared-memory connection that the
// dead process had, too.
void say_anew() {
  if (objects == nullptr) return;
  objects->sockets.for_each([](Socket& socket) {
    if (socket.alive && socket.kind == FileKind::kListener && (listener_bits(socket) & kIn) != 0) signal(socket, kIn);
  });
  for_each_local_link([](const LocalLink& link) {
    if (link.channel.is_open()) wake_peer(link);
  });
  Wires& wires = shard().wires();
  wires.rung = false;
  const WireSleeper& sleeper = wires.sleeper();
  if (sleeper.asleep) collect_wake(sleeper.target);
}

// The process that gave up the dead's references may have died itself. Then the last reference is gone, and the object
// is still there.
void end_unreferenced(Guard& guard, Cause cause) {
  for_each_file([&](File& file) {
    if (!file.references.empty() || file.users != 0) return;
    file.alive = file.ending = true;
    if (cause == Cause::kDied) leave_nothing_unread(guard, file);
    end_if_unused(guard, file);
  });
}

std::size_t sweep(Guard& guard, Cause cause) {
  const std::size_t dead = shard().family().sweep([&](std::uint32_t slot) {
    drop_waiters(guard, slot);
    drop_references(guard, slot, cause);
  });
  if (dead == 0) return 0;
  end_unreferenced(guard, cause);
  count_members();
  wake_told();
  say_anew();
  return dead;
}

}  // namespace

std::size_t sweep_family(Guard& guard) {
  return sweep(guard, Cause::kDied);
}

void end_the_dead(Guard& guard) {
  sweep(guard, shard().family().has_living_kin() ? Cause::kDied : Cause::kAllDied);
}

void sweep_family() {
  Guard guard(shard());
  sweep_family(guard);
}

void forget_kin(Guard& guard) {
  // What has happened in the old arena must not be sent here, not even by this process's ports: it has none.
  for_each_file([](File& file) {
    const bool is_mine = file.references.of(shard().family().slot()) != 0;
    if (!is_mine && file.kind != FileKind::kEpoll) socket_of(file).linger_s = 0;
  });
  forget_tickets(guard);
  shard().family().forget_others([&](std::uint32_t slot) {
    drop_waiters(guard, slot);
    drop_references(guard, slot, Cause::kDied);
  });
  Wires& wires = shard().wires();
  wires.owner.store(0, std::memory_order_relaxed);
  wires.open.store(false, std::memory_order_relaxed);
  wires.leaving.store(false, std::memory_order_relaxed);
  wires.rung = false;
  wires.watcher = wires.progress = {};
  wires.family_keeper.set(0, 0);
  wires.has_family_keeper.store(false, std::memory_order_relaxed);
  count_members();
}

void enter_arena() {
  const Guard guard(shard());
  count_members();
  call_owner();
}

bool is_shared(const File& file) {
  return file.references.total() != file.references.of(shard().family().slot());
}

bool is_shared_with_kin(const File& file) {
  const Guard guard(shard());
  return file.alive && is_shared(file);
}

void call_kin() {
  Family& family = shard().family();
  const std::uint32_t high = family.table().high.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < high; i++) {
    if (i != family.slot() && family.table().slots[i].pid.load(std::memory_order_relaxed) != 0)
      collect_wake(WakeTarget::process(i));
  }
}

bool refers_to_wire() {
  const Guard guard(shard());
  if (objects == nullptr) return false;
  const std::uint32_t slot = shard().family().slot();
  return objects->sockets.any_of(
      [slot](const Socket& socket) { return is_on_wire(socket) && socket.references.of(slot) != 0; });
}

bool is_wire_needed(const Guard& /*guard*/) {
  return (objects != nullptr && objects->sockets.any_of(is_on_wire)) || tcp_engine().has_connections();
}

bool has_kin() {
  const Wires& wires = shard().wires();
  const std::uint32_t members = wires.members.load(std::memory_order_relaxed);
  return members != 0 && members != expected_members(wires);
}

void call_driver() {
  Wires& wires = shard().wires();
  if (expected_members(wires) == 0) return;
  wires.driver_calls.fetch_add(1, std::memory_order_acq_rel);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&wires.driver_calls), INT_MAX);
}

namespace {

/// Whether a driver serves the ports. False where a keeper waits that nobody has called, where a member has opened the
/// ports, and where the driver was killed.
bool is_served_by_driver(const Wires& wires) {
  const std::uint64_t driver = wires.driver.load(std::memory_order_acquire);
  return driver != 0 && driver == wires.owner.load(std::memory_order_acquire) &&
         wires.open.load(std::memory_order_acquire) &&
         shard().family().alive(Wires::slot_in(driver), static_cast<std::uint32_t>(driver));
}

}  // namespace

bool await_drivers_look() {
  constexpr std::int64_t kLook = 20'000'000;  // ns
  constexpr int kLooks = 50;
  Wires& wires = shard().wires();
  if (!is_served_by_driver(wires)) return false;
  call_driver();
  const std::uint32_t called = wires.driver_calls.load(std::memory_order_acquire);
  const auto has_looked = [&](std::uint32_t seen) { return static_cast<std::int32_t>(seen - called) >= 0; };
  for (int i = 0; i < kLooks && is_served_by_driver(wires); i++) {
    const std::uint32_t seen = wires.driver_looked.load(std::memory_order_acquire);
    if (has_looked(seen)) break;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&wires.driver_looked), seen, kLook);
  }
  return true;
}

}  // namespace bypass::socket
