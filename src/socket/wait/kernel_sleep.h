// KernelSleep: a thread that waits for an epoll set by the program's own call, as nothing of ours is in the set.
//
// It costs one system call, as without libbypass, and the kernel chooses which thread it wakes (EPOLLEXCLUSIVE). The
// thread stores this in its Waiter before it checks that the set has no object of ours. The thread that adds the first
// object looks for such threads afterwards. A fence stands between the two steps on either side, so at least one side
// sees the other.
//
// Such sleepers are called by a descriptor of ours that is always readable. It is added to the kernel's set, and
// removed once no thread sleeps there any more. Its event is never shown to the program.
// Tests: tests/socket/epoll_test.cc, tests/system/local_sharing.py.
#pragma once

#include <sys/epoll.h>

#include "socket/api.h"

namespace bypass::socket {

struct Epoll;

/// Whether a call that does not wait may be the program's own, with nothing to do after it.
[[nodiscard]] bool is_kernels_alone(const File& epoll);

/// The first object of ours has come into the set. `number` is one of the set's numbers in this process. Lock held.
/// True: some sleepers are in other processes, which cannot remove the descriptor: call await_kernel_sleepers().
[[nodiscard]] bool call_kernel_sleepers(Epoll& set, int number);
/// Without the lock: waits for them, at most some milliseconds.
void await_kernel_sleepers(Epoll& set, int number);
/// Removes the descriptor's event from what the kernel has reported, and the descriptor from the set if no thread
/// sleeps any more. Returns how many events are left. Called without the lock.
int drop_calls(Epoll& set, int number, epoll_event* events, int count);
/// In a forked child: the parent's descriptor is closed.
void forget_call_descriptor();
/// Whether the descriptor may be in the set. Read without the lock.
[[nodiscard]] bool is_calling(const Epoll& set);

}  // namespace bypass::socket
