// Doorbell: wakes a thread that sleeps, from another process of the family. It is a datagram socket with an abstract
// name (unix(7)), which processes that have changed their user reach, too.
//
// Anybody in the network namespace may send to that name. So the socket has a filter (SO_ATTACH_FILTER) that accepts
// only a datagram that is exactly the doorbell's token. The kernel runs the filter within the sender's call. What a
// stranger sends is dropped there, and never lies in the queue. A descriptor that came along is closed by the sender's
// own thread, which may take long (SO_LINGER). Each doorbell has a token of its own, a random number in the arena. So a
// stranger that takes the name of a doorbell that is gone learns nothing.
//
// An abstract name belongs to the network namespace in which the socket was made. A process in another namespace than
// its family's would be called by nobody, and could call nobody. So before it goes there (unshare(2), setns(2),
// clone(2)) it has a socket to ring by, and spare ones that become doorbells. They stay in the family's namespace.
#pragma once

#include "socket/family/wires.h"

namespace bypass::socket {

/// Makes a doorbell, and puts its name and token into `bell`. Returns the descriptor; -1: none can be made.
int make_doorbell(Doorbell& bell);
/// Reads the rings that have come by now. If there are more, the next call reads them.
void silence_doorbell(int fd);
/// Called in a forked child whose inherited descriptors have been closed, but for those that were hidden.
void forget_doorbells();

/// Called before this process goes to another network namespace.
void prepare_to_go();
/// Whether this process may have gone. Then it has few sockets that can be doorbells: its threads have none, and are
/// called by way of the process's.
[[nodiscard]] bool has_few_doorbells();
/// Whether a socket belongs to another network namespace than the family's doorbells.
[[nodiscard]] bool is_elsewhere(int fd);
/// Called in the parent before a fork, and after it. `goes`: the child begins in a network namespace of its own. Forks
/// of one process come one after the other.
void prepare_doorbells_for_fork(bool goes);
void end_doorbells_of_fork();
/// While they are hidden, a process that closes what the library has inherited keeps what it cannot make itself.
void hide_doorbells();
void show_doorbells();
/// Rings target.doorbell, or, if that is empty, the doorbell of the target's process. Never waits: a doorbell that is
/// full is readable already.
void ring_doorbell(const WakeTarget& target);

}  // namespace bypass::socket
