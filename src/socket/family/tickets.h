// Tickets: sockets and epoll sets that are on their way from one process of a family to another (SCM_RIGHTS, unix(7)).
//
// The message has a ticket in place of each of them: a Unix socket that the sender makes (preload/passing.h). The arena
// says which object the ticket is for, and the ticket is one more reference to the object. So the sender may close at
// once. The receiver knows the ticket by its cookie, which the kernel gives out once. Nobody can make such a socket: a
// process that has one was given it.
//
// The reference ends when no descriptor names the ticket any more. The kernel tells that (os/net/unix_diag.h), also of
// a message that is thrown away. The progress thread asks while there are tickets.
// Tests: tests/socket/tickets_test.cc, tests/system/passed.py
#pragma once

#include <cstdint>

#include "os/net/unix_diag.h"
#include "socket/api.h"
#include "socket/family/family.h"

namespace bypass::socket {

class Guard;

/// In SlotRefs, what tickets refer to. No process has that slot.
inline constexpr std::uint32_t kTicketSlot = kMaxProcesses;

struct Ticket {
  Ticket(File& named, const os::UnixSocketId& known_by) : file(&named), id(known_by) {}

  File* file;
  os::UnixSocketId id;
  bool taken = false;  // a receiver has closed its descriptor, or is about to
};

/// The Unix socket, which this process has open, is a ticket for the object from here on. False: there is no memory, or
/// the object has ended. Takes the lock.
[[nodiscard]] bool make_ticket(File& file, const os::UnixSocketId& id);
/// The object that the Unix socket is a ticket for, with one more reference of this process. Null: it is no ticket of
/// this arena, or there is no memory. Takes the lock.
[[nodiscard]] File* take_by_ticket(const os::UnixSocketId& id);
/// `fd` names such an object from here on. What the kernel had under the sender's number is beneath. Takes the lock.
void adopt_taken(File& file, int fd);

/// How many tickets there are. A hint, read without the lock.
[[nodiscard]] std::uint32_t tickets_out();
/// Ends the tickets that no descriptor names any more. Some system calls for each ticket. Takes the lock.
void settle_tickets();
/// The same for one. Takes the lock.
void settle_ticket(const os::UnixSocketId& id);
/// The same where a receiver has been at it: the sender has closed its descriptor only now. Takes the lock.
void settle_if_taken(const os::UnixSocketId& id);
/// Ends all. Lock held.
void forget_tickets(Guard& guard);
/// After a death inside the lock: makes the references of tickets anew. Lock held.
void recount_tickets();

}  // namespace bypass::socket
