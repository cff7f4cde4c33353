#include "socket/family/next_image.h"

#include <algorithm>

#include "socket/family/kin_steps.h"
#include "socket/socket.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/readiness.h"
#include "socket/wait/wait.h"

namespace bypass::socket {

namespace {

/// What has come by now is taken in: a port that is closed loses it.
void take_in_what_has_come(Shard& shard) {
  constexpr int kMostBursts = 64;
  for (int i = 0; i < kMostBursts && shard.owns_wires() && shard.poll_locked() != 0; i++) {
  }
}

std::uint32_t count_of(std::span<const NumberedFile> numbers, const File& file) {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(numbers, [&](const NumberedFile& each) { return each.file == &file; }));
}

/// The process counts as many references as it has numbers.
void keep_references(Guard& guard, File& file, std::uint32_t slot, std::uint32_t kept) {
  if (kept == 0) return drop_references_to(guard, file, slot);
  for (std::uint32_t had = file.references.of(slot); had > kept; had--) file.references.remove(objects->memory, slot);
}

void watch_number(const NumberedFile& each, std::uint32_t slot) {
  File& file = *each.file;
  if (file.kind == FileKind::kEpoll) {
    auto& set = static_cast<Epoll&>(file);
    note_set_number(file, each.number);
    if (set.caller.load(std::memory_order_relaxed) == slot + 1) set.caller.store(0, std::memory_order_relaxed);
  }
  if (file.dual) watch_kernel_half(file, each.number);
}

}  // namespace

Inherited inherited_as(const File& file) {
  const Guard guard(shard());
  if (!file.alive || file.ending) return Inherited::kNot;
  if (file.kind == FileKind::kEpoll) return Inherited::kBeside;
  const Socket& socket = socket_of(file);
  const Path path = socket.path;
  if (path == Path::kLocal || path == Path::kKernel || path == Path::kPumped) return Inherited::kNot;
  const bool has_wire =
      connection_of(socket) != nullptr || listener_of(socket) != nullptr || binding_of(socket) != nullptr;
  return has_wire ? Inherited::kOnWire : Inherited::kBeside;
}

bool leave_to_next_image() {
  Guard guard(shard());
  Wires& wires = shard().wires();
  if (wires.members.load(std::memory_order_relaxed) == 0) wires.members.store(1, std::memory_order_relaxed);
  guard.context().shared = true;
  take_in_what_has_come(shard());
  if (shard().owns_wires() && !move_frames(guard)) return false;
  thread_signals.serves_the_end = true;
  shard().end_for_others();
  return true;
}

void go_on_in_this_image() {
  {
    const Guard guard(shard());
    count_members();
  }
  shard().go_on_for_others();
  thread_signals.serves_the_end = false;
}

void take_up_from_last_image(std::span<const NumberedFile> numbers) {
  Guard guard(shard());
  const std::uint32_t slot = shard().family().slot();
  drop_waiters(guard, slot);
  for (const NumberedFile& each : numbers) watch_number(each, slot);
  for_each_file([&](File& file) {
    if (file.alive && file.references.of(slot) != 0) keep_references(guard, file, slot, count_of(numbers, file));
  });
  count_members();
  call_owner();
}

}  // namespace bypass::socket
