// Whether this process accelerates anything. Undecided until its first internet socket or epoll set.
#pragma once

#include <atomic>

namespace bypass::preload {

/// The library was loaded: from now on is_accelerating() may decide.
void begin_deciding();
/// Decides at the first call, which reads the configuration and starts the runtime; later calls are one load. False in
/// a thread that goes straight to the kernel, before our constructor and after our destructor.
bool is_accelerating();
/// A port's address belongs to one family, which begins here. Processes that are forked before their first sockets
/// would otherwise each want it. Does nothing if the configuration names no port.
void decide_before_fork();
extern std::atomic<bool> started;
/// Does not decide.
inline bool has_started() {
  return started.load(std::memory_order_acquire);
}

/// Called by our destructor: from now on everything is the kernel's.
void end_acceleration();
/// In a forked child: the next socket asks the runtime again; inherited objects stay known.
void decide_again();

}  // namespace bypass::preload
