// Host: what this process offers to its backends (backend.h's table).
#pragma once

#include <signal.h>

#include "backends/backend.h"
#include "os/own/own_descriptors.h"

namespace bypass::runtime {

/// The table that every plugin gets. Valid for the life of the process.
const Host& backend_host();

/// The table's Host::environment(), used instead of `environ`: it stays in place for the life of the process.
void use_environment(const char* const* entries);

/// Moves a descriptor of ours above the program's numbers (high_numbers.h), CLOEXEC, and registers it. Returns the new
/// number. -1, with the descriptor closed: there is no room, or it would be the program's last number. -1 stays -1.
int own_high(int fd);
/// The same for descriptors that come and go with the program's connections, and are given up if it has no number left.
int own_passing(int fd);
/// A copy of `fd`, kept like own_passing()'s. Negative: there is no room above the program's numbers.
int own_copy(int fd);
/// How many of them may come and go with the program's connections, so that the program finds numbers, too.
std::uint32_t most_own_descriptors();

/// Every signal, but those that report a fault: these are to be reported, and are the program's handler's to see.
inline sigset_t all_but_faults() {
  sigset_t set;
  sigfillset(&set);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&set, fault);
  return set;
}

/// How many threads of ours there are now; one that begins or ends may not be counted yet, or no more.
std::uint32_t own_threads();
/// All threads of the process, the program's and ours; 0: /proc cannot be asked. Async-signal-safe.
std::uint64_t all_threads();
/// In a forked child, which has none.
void forget_own_threads();
/// To be called before a fork by clone(2) itself, of which libc knows nothing. The child's libc still has the parent's
/// threads in its list. For one that has not run yet, setuid() and related calls would wait for ever there.
void await_beginning_threads();
/// Whether the caller is one.
bool is_own_thread();

/// A thread of ours: every signal blocked, marked inside for good, named. Returns 0 or an errno.
int run_thread(const char* name, void (*body)(void*), void* argument, std::uint64_t* id);
void join_thread(std::uint64_t id);

}  // namespace bypass::runtime
