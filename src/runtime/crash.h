// Crash reports: when the process dies of a fault inside the library, say what the library was doing and
// where, then let the program's own handler, or the default action, have the signal.
//
// The program must see nothing of this: its view of the five signals is kept apart (the preload layer sends
// sigaction and signal here), and our handler is installed with the program's flags and mask, so that the
// kernel itself does SA_ONSTACK, SA_NODEFER, SA_RESTART, SA_RESETHAND and the mask. A signal that the program
// ignores is left ignored. Installed when a port is opened, never before.
//
// A vfork child shares this table with its parent: its sigaction calls must go straight to the kernel.
#pragma once

#include <csignal>

namespace bypass::runtime::crash {

struct Hooks {
  /// The calling thread is inside the library (also when it faults in libc on our behalf). Async-signal-safe.
  bool (*inside)() = nullptr;
  /// What it is doing there, as in "while …"; null or "" when that is not known. Async-signal-safe.
  const char* (*doing)() = nullptr;
  /// libc's own sigaction.
  int (*sigaction)(int, const struct sigaction*, struct sigaction*) = nullptr;
};

/// When a port is opened; the first call counts. Opens libbypass-crash.so for the backtrace; without it the report is
/// shorter.
void install(const Hooks& hooks);
bool installed();

/// The code around `address` is the library's: its own, a plugin's. At most 16 objects.
void cover(const void* address);

/// One of the signals whose handlers we keep: SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT.
bool concerns(int signal);

/// What the program's sigaction() does for these signals once installed() (before: libc's own).
/// Returns 0, or -1 with errno as libc's.
int on_program_sigaction(int signal, const struct sigaction* action, struct sigaction* old);

/// A forked child's first act: another thread of the parent may have been inside. Async-signal-safe.
void on_fork_child();

}  // namespace bypass::runtime::crash
