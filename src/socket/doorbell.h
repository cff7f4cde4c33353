// Doorbell: how a thread that sleeps is woken from another process of the family: a datagram socket with an abstract
// name, to which anybody in the network namespace may send; a stranger's datagram wakes in vain and tells nothing.
#pragma once

#include "socket/wires.h"

namespace bypass::socket {

/// A new doorbell: its descriptor, -1 when there is none to be had, and its name in `target`.
int make_doorbell(WakeTarget& target);
/// Empties it.
void silence_doorbell(int fd);
/// In a forked child: the parent's descriptors are closed.
void forget_doorbells();
/// Rings target.doorbell, else that of the target's process. Never waits: one that is full is readable already.
void ring_doorbell(const WakeTarget& target);

}  // namespace bypass::socket
