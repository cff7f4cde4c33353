// Arena: one shared mapping at one address for a process and all that it forks.
//
// The address range is reserved when the library loads, before anything else can take it; nothing of it is
// touched then. At the first internet socket it becomes a MAP_SHARED mapping of a sparse memfd, so that forked
// processes find the same objects at the same addresses. It is left out of core dumps. Pages cost nothing until
// they are touched; how many may be in use is Memory's budget.
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

/// Of an arena that processes of fewer rights may have left for another one: what they need to know of that (spare.h).
/// As fresh memory it says that none has.
struct Spare {
  /// A futex. In the arena that is left: changes with `founder`. In the other one: how far it has come.
  std::atomic<std::uint32_t> changes;
  enum : std::uint32_t { kCopied, kSettled, kDriven };
  std::uint64_t founder;  // with the shard's lock: who makes it ready, by Wires::name(); 0: nobody
  bool filled;            // … it is an arena, of processes of this standing
  Standing standing;
};

/// A process's hold on its arena: the parts that lie there, and its own halves of them.
struct Mapped {
  Memory* memory;
  socket::Family& family;
  socket::ShardLock& lock;
  Spare& spare;
};

/// Reserves the range at an address that is drawn at random: getrandom, mmap and madvise, at load. Forked processes
/// have the same; an exec'd image draws anew; under RLIMIT_AS it is an eighth of the limit, or nothing, and take() says
/// so.
void reserve();

/// The addresses of the reservation; empty: nothing is reserved.
[[nodiscard]] std::span<const std::byte> range();

/// The largest budget that the reservation holds; 0: nothing is reserved.
std::size_t largest_budget();

/// Makes the reservation memory, with `budget` bytes for use. Null: `problem` says why (RLIMIT_FSIZE,
/// RLIMIT_AS, no memfd), complete, and the program stays with the kernel's sockets.
Mapped* take(std::size_t budget, std::string& problem);

/// Leaves the arena to the others: in its place comes a copy, at the same addresses, of what has been touched. Between
/// the two `leave` is called, and what it writes is seen by the others only. With the shard's lock held, and no other
/// thread of this process at it. False: `problem` says why there is none; nothing is there any more, and the addresses
/// are a reservation again.
[[nodiscard]] bool renew(const Mapped& mapped, void (*leave)(const Mapped&), std::string& problem);

// The same in parts, for a copy that several processes go on with. Meanwhile the process has none.

/// Memory for such a copy, empty, which nobody has mapped; -1: `problem` says why.
[[nodiscard]] int make_memory(std::string& problem);
/// Copies what has been touched into it. With the shard's lock held. False: `problem` says why not.
[[nodiscard]] bool copy_into(const Mapped& mapped, int memory, std::string& problem);
/// The addresses are a reservation again.
void drop();
/// What was copied takes its place there. False: `problem` says why not.
[[nodiscard]] bool map(int memory, std::string& problem);

}  // namespace bypass::runtime::arena
