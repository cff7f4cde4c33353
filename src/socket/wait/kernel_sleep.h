// KernelSleep: a thread that waits for an epoll set by the program's own call, because nothing of ours is in the set.
//
// It costs one system call, as without us, and the kernel chooses whom it wakes (EPOLLEXCLUSIVE). The thread says so in
// its Waiter before it looks whether the set is still free of our objects. The thread that adds the first one looks for
// such threads afterwards. A fence stands between the two steps of either, so one of the two sees the other.
//
// Sleepers are called by a descriptor of ours that is always readable. It enters the kernel's set, and leaves it
// once nobody sleeps there any more. Its event is never told to the program.
#pragma once

#include <sys/epoll.h>

#include "socket/api.h"

namespace bypass::socket {

struct Epoll;

/// Whether a call that does not wait may be the program's own, with nothing to be done after it.
[[nodiscard]] bool is_kernels_alone(const File& epoll);

/// The first object of ours has come into the set. `number` is one of the set's in this process. Lock held. True: some
/// who sleep there are of other processes, which cannot take the descriptor out: await_kernel_sleepers() is due.
[[nodiscard]] bool call_kernel_sleepers(Epoll& set, int number);
/// Without the lock: waits for them, some milliseconds at most.
void await_kernel_sleepers(Epoll& set, int number);
/// Takes the event of that descriptor out of what the kernel has told, and the descriptor out of the set where nobody
/// sleeps any more. How many are left. Lock not held.
int drop_calls(Epoll& set, int number, epoll_event* events, int count);
/// In a forked child: the parent's is closed.
void forget_call_descriptor();
/// Whether the descriptor may be in the set. Read without the lock.
[[nodiscard]] bool is_calling(const Epoll& set);

}  // namespace bypass::socket
