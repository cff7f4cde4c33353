// Keeper: a process of ours, named `bypass-keeper`, that ends the connections of a family whose last process was
// killed.
//
// A process that ends by itself delivers what it has written (life/deliver.cc). One that is killed cannot. The keeper
// waits for the end of the family's processes, one after the other, by pidfd. When none is left, the keeper opens the
// ports and ends what the dead had open as the kernel does it: bytes that were written are delivered, and a FIN follows
// them. Where received bytes were unread, and for connections that nobody has accepted, the peer gets an RST.
//
// Meanwhile it only sleeps: it has no slot in the family, no thread of its own and no port. So it changes nothing for
// the family's data path. It is a copy of the process that made it, with that process's rights, in a session of its
// own, and a child of init. It has none of the program's descriptors.
//
// Tests: tests/system/killed.py
#pragma once

namespace bypass::runtime {

struct Process;

/// Makes the family's keeper, if the settings want one and there was none yet. To be called before the ports are opened
/// here, outside the lock. Makes none in a handler, under a filter of system calls, with BYPASS_KEEPER=auto in a large
/// process, and in one that adopts orphans: it would find the keeper among its children.
void begin_keeper(Process& process);

/// There is nothing left for the keeper to end: the last process of the family leaves the arena, or is about to have
/// fewer rights than the keeper. Waits until the keeper is gone. False: it lives, and this process may not end it.
bool end_keeper(Process& process);

}  // namespace bypass::runtime
