// Kin: what fork, exec and death mean for the objects of a family.
//
// A forked child has every number that its parent had, so it refers to the same objects. Between the fork and the
// child's first call a reserved slot holds these references. (The parent may close its numbers at once, and the child
// may die early.) src/preload walks the numbers themselves, in a table that is private to each process.
#pragma once

#include <cstdint>

#include "socket/api.h"
#include "socket/shard.h"

namespace bypass::socket {

/// A fork under way, as the parent sees it, and the child in its copy.
struct Fork {
  std::uint32_t reserved = kNoSlot;  // kNoSlot: the child cannot share anything
  std::uint32_t incarnation = 0;
};

/// Called in the parent before the fork; then one call for each number of its table, then the fork.
Fork begin_fork();
void share_with_child(const Fork& fork, File& file);

/// Called in the parent after the fork. `child` 0: the pid is not known; negative: there is no child.
void end_fork_in_parent(const Fork& fork, std::int32_t child);

/// Called in the child; false: it can share nothing. Then comes one call for each number of its table (false: the
/// number is the kernel's alone here), and the end.
bool join_family(const Fork& fork);
bool adopt_number(const Fork& fork, File& file, int fd);
void end_fork_in_child(const Fork& fork);

/// Called before exec, and at the end: this process gives up all references. Objects without any other reference end as
/// by close(). Lock held.
void leave_family(Guard& guard);
/// Called in a copy of the arena that only this process has (runtime/family/rights/privilege.h): removes what only
/// others referred to, and tells nobody. Lock held.
void forget_kin(Guard& guard);
/// Called in an arena to which others have gone on before, with a slot of its own there
/// (runtime/family/rights/driver.h).
void enter_arena();
/// Whether other processes have the object, too. What this process agrees on, or has seen there, they do not know, and
/// they take what is there. Lock held.
[[nodiscard]] bool is_shared(const File& file);
/// The same of an object that is alive, in the arena that is left. Takes the lock.
[[nodiscard]] bool is_shared_with_kin(const File& file);
/// Gives up what dead processes referred to, as the kernel closes their descriptors. Returns how many were dead. Lock
/// held.
std::size_t sweep_family(Guard& guard);
/// The same, and takes the lock.
void sweep_family();
/// The same in a process that serves the wires when all others have died: a connection with bytes unread ends by RST,
/// as in the kernel. To be called with a link up, since the RST is lost otherwise. Lock held.
void end_the_dead(Guard& guard);
/// Calls `open()`, which makes something with a port number of the stack's. If the number is in use, perhaps by a
/// process that has died unnoticed, the dead are swept and `open()` is tried once more. Lock held.
template <typename Open>
auto open_beside_dead(Guard& guard, const Open& open) {
  auto made = open();
  if (!made.ok() && made.error() == Error::kAddressInUse && sweep_family(guard) != 0) made = open();
  return made;
}
/// Wakes the progress threads of all other processes. Lock held.
void call_kin();
/// Whether this process has a number for a socket that the stack serves. Takes the lock.
[[nodiscard]] bool refers_to_wire();
/// Whether the family needs a process to serve the ports. It does if one of its processes refers to a socket there, has
/// died with one, or has left a connection that has not ended. The process that makes it so reports it
/// (Policy::ask_for_wire). Lock held.
[[nodiscard]] bool is_wire_needed(const Guard& guard);
/// Whether other processes share the shard.
[[nodiscard]] bool has_kin();
/// Calls the family's driver, if it has one (runtime/family/rights/driver.h): a member has gone, or has closed a
/// listener, or a wire asks for rights. Lock held.
void call_driver();
/// … and waits until the driver has looked, a second at most. Then everything has ended that no process has any more.
/// False: no driver serves the family. Called without the lock.
bool await_drivers_look();
/// Called after a death inside the lock (ShardLock::Handlers).
void rebuild_after_death(Shard& shard);

}  // namespace bypass::socket
