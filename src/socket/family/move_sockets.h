// MoveSockets: moves listeners and bound datagram sockets on the wire from the arena that a process leaves to the arena
// of the others with its new rights (runtime/family/rights/privilege.h).
//
// In both arenas the kernel's socket beneath its numbers identifies such a socket. In between the process has no arena,
// so it notes what is needed in its own memory.
// Tests: tests/socket/kin_test.cc, tests/system/drops.py.
#pragma once

#include <cstdint>
#include <vector>

#include "socket/api.h"
#include "socket/shard.h"

namespace bypass::socket {

/// Whether this process and its family have on the wire only what can move. None of it may be in an epoll set, or
/// polled by another process: a master that learns there of peers makes workers for them. This process may have no
/// epoll set, either, since its items would stay behind. Takes the lock.
[[nodiscard]] bool has_only_what_moves();
/// Whether this process has a number of each socket of the family's on the wire, or of one that shares its address.
/// What it has not would be silent when the ports move with it. Takes the lock.
[[nodiscard]] bool has_all_on_wire();

/// Called in the arena that is about to be left, for a number: notes its listener or datagram socket. Other objects are
/// forgotten.
void note_socket(File& file, int fd);
/// Called in that arena after a copy was made: drops the waiting datagrams here, as the copy has them. Lock held.
void drop_queued(Context& context);
/// Called in the new arena, with a slot there. For each socket that was noted it finds the one that another process has
/// brought, or makes it. `enter` is told each number's object. Null: there is no memory for it, or its address is
/// taken, and the number is the kernel's alone.
void bring_sockets(void (*enter)(int fd, File* file));

/// Called in a driver: refers to each such socket of the family, as a master does. A socket that no other process of
/// the family has ends as soon as the kernel's socket beneath it is closed everywhere: then its inode is not among
/// `open_sockets`. True: there are sockets that no other process of the family has and that are open elsewhere. Takes
/// the lock.
bool hold_sockets(std::vector<std::uint64_t> (*open_sockets)());

/// Forgets what this process has of its own beside the objects of an arena, as a forked child does.
void forget_own_halves();

}  // namespace bypass::socket
