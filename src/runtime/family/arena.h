// Arena: one shared mapping, at one address, for a process and everything that it forks.
//
// The address range is reserved when the library loads, before anything else can take it. No page is touched then. At
// the first internet socket the range becomes a MAP_SHARED mapping of a sparse memfd, so that forked processes find the
// same objects at the same addresses. It is left out of core dumps. A page costs nothing until it is touched; Memory's
// budget limits how many may be in use.
//
//   Header | processes (FamilyTable) | lock (LockState) | Spare | Memory
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/family/standing.h"
#include "socket/family/family.h"
#include "socket/shard_lock.h"
#include "stack/memory/memory.h"

namespace bypass::runtime::arena {

/// For an arena that processes with fewer rights may have left for another one: what they need to know about that
/// (spare.h). As fresh memory (all zero) it says that no process has.
struct Spare {
  std::atomic<std::uint32_t> changes;  // a futex: in the arena that is left, it changes with `founder`
  std::atomic<std::uint32_t> made;     // a futex: in the other arena, how far that one has been made
  enum : std::uint32_t { kCopied, kSettled, kDriven, kAbandoned };
  // Wires::name() of the process that makes the other arena; 0: nobody does. With the shard's lock
  std::uint64_t founder;
  // The other memory holds a copy, for processes of this standing. With the turn to make it (privilege.cc)
  bool filled;
  Standing standing;
};

/// A process's hold on its arena: the parts that lie there, and the process's own halves of these parts.
struct Mapped {
  Memory* memory;
  socket::Family& family;
  socket::ShardLock& lock;
  Spare& spare;
};

/// Reserves the range at a random address, by getrandom, mmap and madvise, at load. Forked processes have the same
/// range; an exec'd image draws a new one. Under RLIMIT_AS the range is an eighth of the limit, or there is none, and
/// take() tells so.
void reserve();

/// The same for an image that goes on with the arena of the image before it: exactly these addresses. False: another
/// mapping is there.
[[nodiscard]] bool reserve_at(std::span<const std::byte> addresses);

/// The reserved addresses; empty: nothing is reserved.
[[nodiscard]] std::span<const std::byte> range();

/// The largest budget that the reservation holds; 0: nothing is reserved.
std::size_t largest_budget();

/// Turns the reservation into memory, of which `budget` bytes may be used. Null: `problem` says completely why
/// (RLIMIT_FSIZE, RLIMIT_AS, no memfd), and the program stays with the kernel's sockets.
Mapped* take(std::size_t budget, std::string& problem);

/// The memory's descriptor, by which the next image of this process maps it; -1: there is none. Only a process keeps
/// one that has ports, and only for the arena that it has mapped.
void keep_descriptor(bool keeps);
[[nodiscard]] int descriptor();
/// Called in a child, around the closing of everything that was the parent's own.
void hide_descriptor();
void show_descriptor();

/// For an image that goes on: maps `memory` at the reserved addresses, and takes the slot of the image before it.
/// Null: `problem` says why not. `memory` is kept as the arena's descriptor, or closed.
Mapped* take_up(int memory, Memory& heap, std::string& problem);
/// The image does not go on: to other processes this one has ended. A system call.
void disown(int memory, std::uint32_t slot);

/// Leaves the arena to the other processes. In its place comes a copy, at the same addresses, of what has been touched.
/// `leave` is called after the copy is made and before it takes the place: what `leave` writes, only the others see.
/// Called with the shard's lock held, while no other thread of this process is in the arena. False: `problem` says why
/// there is no copy. Then nothing is mapped any more, and the addresses are a reservation again.
[[nodiscard]] bool renew(const Mapped& mapped, void (*leave)(const Mapped&), std::string& problem);

// The same in parts, for a copy with which several processes go on. Meanwhile the process has no arena.

/// Makes empty memory for such a copy, which no process has mapped. -1: `problem` says why.
[[nodiscard]] int make_memory(std::string& problem);
/// Copies what has been touched into `memory`, and removes what another process may have copied there. Called with the
/// shard's lock held. False: `problem` says why not.
[[nodiscard]] bool copy_into(const Mapped& mapped, int memory, std::string& problem);
/// Spare::made in a copy that this process has not mapped. Who maps the copy can write the word: the caller may believe
/// it only where a lie harms nobody else. A system call. kAbandoned if it cannot be read.
[[nodiscard]] std::uint32_t made_in(int memory);
/// The same for the process that has made the copy, and does not enter it: sets kAbandoned. A system call.
void abandon(int memory);
/// Makes the addresses a reservation again.
void drop();
/// Maps `memory` in the arena's place. False: `problem` says why not.
[[nodiscard]] bool map(int memory, std::string& problem);

}  // namespace bypass::runtime::arena
