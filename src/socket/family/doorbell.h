// Doorbell: how a thread that sleeps is woken from another process of the family: a datagram socket with an abstract
// name (unix(7)), which processes that have changed their user reach, too.
//
// Anybody in the network namespace may send to that name. So the socket has a filter (SO_ATTACH_FILTER) that takes a
// datagram which is the doorbell's token and nothing else. The kernel asks it within the sender's call: what a
// stranger sends is dropped there, never lies in the queue, and a descriptor that came along is closed by the sender's
// own thread, which may take as long as it likes (SO_LINGER). The token is a random number in the arena, one a
// doorbell: when a stranger has taken the name of a doorbell that is gone, that stranger learns nothing.
#pragma once

#include "socket/family/wires.h"

namespace bypass::socket {

/// A new doorbell: its descriptor, -1 when there is none to be had, and its name and token in `bell`.
int make_doorbell(Doorbell& bell);
/// Takes what has rung by now; more of it is left to the next call.
void silence_doorbell(int fd);
/// In a forked child: the parent's descriptors are closed.
void forget_doorbells();
/// Rings target.doorbell, else that of the target's process. Never waits: one that is full is readable already.
void ring_doorbell(const WakeTarget& target);

}  // namespace bypass::socket
