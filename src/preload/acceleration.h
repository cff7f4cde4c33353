// Whether this process accelerates anything: undecided until its first internet socket or epoll set.
#pragma once

#include <atomic>

namespace bypass::preload {

/// The library has been loaded: from here on it may be asked.
void begin_deciding();
/// Decides at the first call, which reads the configuration and starts the runtime; one load from then on.
/// False in a thread that goes straight, before our constructor and after our destructor.
bool is_accelerating();
/// A port's address is one family's, which begins here: processes that are forked before their first sockets would each
/// want it for itself. Decides nothing where the configuration names no port.
void decide_before_fork();
extern std::atomic<bool> started;
/// Decides nothing.
inline bool has_started() {
  return started.load(std::memory_order_acquire);
}

/// Our destructor: from here on everything is the kernel's.
void end_acceleration();
/// In a forked child: the next socket asks the runtime again; what was inherited stays known.
void decide_again();

}  // namespace bypass::preload
