// Doorbell: wakes a thread that sleeps, from another process of the family. It is a datagram socket with an abstract
// name (unix(7)), which processes that have changed their user reach, too.
//
// Anybody in the network namespace may send to that name. So the socket has a filter (SO_ATTACH_FILTER) that accepts
// only a datagram that is exactly the doorbell's token. The kernel runs the filter within the sender's call. What a
// stranger sends is dropped there, and never lies in the queue. A descriptor that came along is closed by the sender's
// own thread, which may take long (SO_LINGER). Each doorbell has a token of its own, a random number in the arena. So a
// stranger that takes the name of a doorbell that is gone learns nothing.
#pragma once

#include "socket/family/wires.h"

namespace bypass::socket {

/// Makes a doorbell, and puts its name and token into `bell`. Returns the descriptor; -1: none can be made.
int make_doorbell(Doorbell& bell);
/// Reads the rings that have come by now. If there are more, the next call reads them.
void silence_doorbell(int fd);
/// Called in a forked child: closes the parent's descriptors.
void forget_doorbells();
/// Rings target.doorbell, or, if that is empty, the doorbell of the target's process. Never waits: a doorbell that is
/// full is readable already.
void ring_doorbell(const WakeTarget& target);

}  // namespace bypass::socket
