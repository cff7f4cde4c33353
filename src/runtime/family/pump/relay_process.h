// RelayProcess: the process named `bypass-relay`, and what a process asks of its own relay (relay.h).
//
// A process that leaves its family, while the family keeps the ports, has one made first: afterwards it could not. The
// process and what it forks hold one socket by which they ask. It is closed on exec. The relay is a child of init. It
// ends when nobody holds that socket, nor a listener.
#pragma once

#include "stack/address.h"

namespace bypass::runtime {

struct Process;

/// Called in a process of one thread, without a thread of ours, that is about to leave the arena. If it cannot use a
/// relay, or has one, does nothing.
void begin_relay(Process& process);

/// Whether this process has a relay. It may have ended.
[[nodiscard]] bool has_relay();

/// From here on this process and what it forks ask no relay. To be called before the process forbids itself calls of
/// the network (seccomp(2), landlock(7)): a relay would do them for it.
void drop_relay();

/// Called in a forked child, around the closing of everything that was the parent's own.
void hide_relay();
void show_relay();

/// Asks the relay to listen at the address that `fd`, a socket of the kernel's, is bound to, or to connect. Returns the
/// descriptor of the program's end, or a negative errno. The relay has 10 s to answer.
[[nodiscard]] int ask_to_listen(int fd, int backlog);
[[nodiscard]] int ask_to_connect(int fd, const Endpoint& remote);
/// Waits until the relay has ended what this process has closed. False: there is no relay.
bool await_relays_look();

}  // namespace bypass::runtime
