// The library's handler of faults. From the first socket on, SIGSEGV and SIGBUS: a copy to or from memory of the
// program's that is not there goes on as a failed one (os/program_memory.h). From the first port on, all five, for
// crash reports: when the process dies of a fault inside the library, say what the library was doing and where. Then
// the program's own handler, or the default action, has the signal.
//
// The program must see nothing of this: its view of the signals is kept apart (the preload layer sends
// sigaction and signal here), and our handler is installed with the program's flags and mask, so that the
// kernel itself does SA_ONSTACK, SA_NODEFER, SA_RESTART, SA_RESETHAND and the mask. A signal that the program
// ignores is left ignored, and a copy that faults then ends the process; likewise where it blocks the signal.
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
/// Whether the program's view of `signal` is kept apart.
bool installed(int signal);

using SigactionCall = int (*)(int, const struct sigaction*, struct sigaction*);
/// Whether a fault is of such a copy: `context` then goes on there. Async-signal-safe.
using Resume = bool (*)(void* context);
/// With the first socket. Async-signal-safe.
void guard_copies(SigactionCall sigaction, Resume resume);

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
