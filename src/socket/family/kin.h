// Kin: what fork, exec and death mean for the objects of a family.
//
// A forked child has every number that its parent had, so it refers to the same objects. Between the fork and the
// child's first word a reserved slot refers to them in its stead (the parent may close its numbers at once, and the
// child may die before it says anything). The numbers themselves, a table private to each process, are walked by
// src/preload.
#pragma once

#include <cstdint>

#include "socket/api.h"
#include "socket/shard.h"

namespace bypass::socket {

/// A fork under way, as the parent and, by its copy, the child see it.
struct Fork {
  std::uint32_t reserved = kNoSlot;  // kNoSlot: the child cannot share anything
  std::uint32_t incarnation = 0;
};

/// In the parent, before: with one call for each number of its table, then the fork.
Fork begin_fork();
void share_with_child(const Fork& fork, File& file);

/// In the parent, after. `child` 0: not known; negative: there is none.
void end_fork_in_parent(const Fork& fork, std::int32_t child);

/// In the child: false when it can share nothing; then one call for each number of its table (false: the number is
/// the kernel's alone here), and the end.
bool join_family(const Fork& fork);
bool adopt_number(const Fork& fork, File& file, int fd);
void end_fork_in_child(const Fork& fork);

/// Before exec, and at the end: this process refers to nothing any more. Lock held. Objects that nobody else refers to
/// end as by close().
void leave_family(Guard& guard);
/// In a copy of the arena that is this process's alone (runtime/family/privilege.h): what only others referred to is
/// gone, and nobody is told. Lock held.
void forget_kin(Guard& guard);
/// In an arena that others have gone on to before, with a slot of its own there (runtime/family/driver.h).
void enter_arena();
/// Before that, in the arena that is left: whether others have it, too.
[[nodiscard]] bool is_shared_with_kin(const File& file);
/// Gives up what dead processes referred to, as the kernel closes their descriptors. Lock held. How many were dead.
std::size_t sweep_family(Guard& guard);
/// The same, and takes the lock.
void sweep_family();
/// `open()`, which makes what has a port of the stack's. Where that is in use, perhaps by a process that has died and
/// that nobody has looked for yet, the dead are swept and it is tried once more. Lock held.
template <typename Open>
auto open_beside_dead(Guard& guard, const Open& open) {
  auto made = open();
  if (!made.ok() && made.error() == Error::kAddressInUse && sweep_family(guard) != 0) made = open();
  return made;
}
/// Wakes the progress threads of all others. Lock held.
void call_kin();
/// Whether this process has a number of a socket that the stack serves. Takes the lock.
[[nodiscard]] bool refers_to_wire();
/// Whether the family needs somebody to have the wires: a process of it refers to a socket there, has died with one, or
/// has left a connection that is not at its end. The process that makes it so says it (Policy::tell_on_wire). Lock
/// held.
[[nodiscard]] bool is_wire_needed(const Guard& guard);
/// Whether other processes share the shard.
[[nodiscard]] bool has_kin();
/// To the driver of the family, if it has one (runtime/family/driver.h): a member has gone, or has let a listener go,
/// or a wire asks for rights. Lock held.
void call_driver();
/// … and waits until it has looked, a second at most: what no process has any more has ended then. False: no driver
/// serves the family. Without the lock.
bool await_drivers_look();
/// After a death inside the lock (ShardLock::Handlers).
void rebuild_after_death(Shard& shard);

}  // namespace bypass::socket
