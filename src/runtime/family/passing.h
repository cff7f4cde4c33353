// Passing: what a process does before it passes a socket of its family to another process (SCM_RIGHTS), and after it
// has got one.
//
// Only a process of the family can go on with the object itself (socket/family/tickets.h). So the sender looks first
// which processes have the other end of the Unix socket by which the message goes (runtime/family/channel_readers.h).
#pragma once

#include <optional>

#include "os/net/unix_diag.h"

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

// To be called in a process that has started, by a thread that does not go straight to the kernel.

/// Whether what is sent by that Unix socket reaches only processes of the family (channel_readers.h).
[[nodiscard]] bool is_read_by_family(int channel);

/// Before an exec: whether sockets may come to the next image by a Unix socket that is left open (channel_readers.h).
[[nodiscard]] bool exec_leaves_channel();

/// Makes a ticket for what `fd` names. Returns a descriptor, which the caller puts into the message. Negative: there is
/// no memory, or no number, for it.
[[nodiscard]] int make_ticket(socket::File& file, int fd);
/// Closes that descriptor, whether the message has been sent or not.
void close_ticket(int ticket, bool sent);

/// A descriptor that has come, and is a ticket.
struct Taken {
  os::UnixSocketId ticket;
  int beneath;           // a descriptor of what the kernel has under the sender's number
  socket::File* object;  // with a reference of this process; null: the ticket is another family's
};
/// Nullopt: `fd` is no ticket, or this process has no number for what is beneath.
[[nodiscard]] std::optional<Taken> take_by_ticket(int fd);
/// The number `fd` had the ticket, has been given what is beneath, and names the object from here on.
void go_on_with(const Taken& taken, int fd);
/// The process has closed a descriptor of the ticket.
void settle(const Taken& taken);

/// A filter of system calls, which this process is about to install, may forbid what it would take by a ticket.
void take_nothing();
/// The process, or a child of it, is about to execute another program, which may be a stranger.
void note_new_program();

}  // namespace bypass::runtime
