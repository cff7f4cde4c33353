// Rehome: listeners and bound datagram sockets on the wire that a process takes from the arena that it leaves to one
// that others of its rights have (runtime/family/privilege.h).
//
// What such a socket is known by in both arenas is the kernel's socket beneath its numbers. Between the two the process
// has neither arena, so what is needed is noted in its own memory.
// Tests: tests/socket/kin_test.cc, tests/system/drops.py.
#pragma once

#include <cstdint>
#include <vector>

#include "socket/api.h"
#include "socket/shard.h"

namespace bypass::socket {

/// Whether this process and its family have nothing on the wire but what can move. None of it may be in an epoll set,
/// or polled by another process: a master that is told there of peers makes workers for them. This process may have no
/// epoll set, either: its items would stay behind. Takes the lock.
[[nodiscard]] bool has_only_what_moves();
/// Whether this process has a number of each socket of the family's on the wire, or of one that shares its address.
/// What it has not would be silent when the ports move with it. Takes the lock.
[[nodiscard]] bool has_all_on_wire();

/// Of a number, in the arena that is about to be left: notes its listener or datagram socket. Others are forgotten.
void note_socket(File& file, int fd);
/// In that arena, of which a copy has been made: datagrams that wait in the copy wait here no more. Lock held.
void drop_queued(Context& context);
/// In the new arena, with a slot there: for each that was noted, the socket that another process has brought, or one
/// that is made now. `enter` is told each number's object, null where there is no memory for it, or its address is
/// taken, and the number is the kernel's alone.
void bring_sockets(void (*enter)(int fd, File* file));

/// A driver's: refers to each such socket of the family, as a master does. One that nobody else of the family has ends
/// as soon as the kernel's socket beneath it is closed everywhere: its inode is not among `open_sockets`. True: there
/// are some that nobody else of the family has, and that are open elsewhere. Takes the lock.
bool hold_sockets(std::vector<std::uint64_t> (*open_sockets)());

/// What this process has of its own beside the objects of an arena, it has no longer: as a forked child.
void forget_own_halves();

}  // namespace bypass::socket
