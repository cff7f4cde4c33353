// The library's handler of faults. From the first socket on it handles SIGSEGV and SIGBUS: a copy to or from program
// memory that is not mapped continues as a failed copy (os/program_memory.h). From the first port on it handles all
// five signals, for crash reports: if the process dies of a fault inside the library, the report says what the library
// was doing and where. Afterwards the program's own handler, or the default action, gets the signal.
//
// The program must not notice this. Its view of the signals is kept separately (the preload layer passes sigaction and
// signal here). Our handler is installed with the program's flags and mask, so that the kernel itself does SA_ONSTACK,
// SA_NODEFER, SA_RESTART, SA_RESETHAND and the mask. A signal that the program ignores stays ignored, and a copy that
// faults then ends the process. The same is so if the program blocks the signal.
//
// A vfork child shares this table with its parent: its sigaction calls must go directly to the kernel.
#pragma once

#include <csignal>

namespace bypass::runtime::crash {

struct Hooks {
  /// Whether the calling thread is inside the library (also if it faults in libc on our behalf). Async-signal-safe.
  bool (*inside)() = nullptr;
  /// What it is doing there, as in "while …"; null or "" if that is not known. Async-signal-safe.
  const char* (*doing)() = nullptr;
  /// libc's own sigaction.
  int (*sigaction)(int, const struct sigaction*, struct sigaction*) = nullptr;
};

/// To be called when a port is opened; the first call counts. Opens libbypass-crash.so for the backtrace; without that
/// the report is shorter.
void install(const Hooks& hooks);
/// Whether the program's view of `signal` is kept separately.
bool installed(int signal);

using SigactionCall = int (*)(int, const struct sigaction*, struct sigaction*);
/// Whether a fault belongs to such a copy: `context` then continues after it. Async-signal-safe.
using Resume = bool (*)(void* context);
/// To be called with the first socket. Async-signal-safe.
void guard_copies(SigactionCall sigaction, Resume resume);

/// Declares the code around `address` as the library's: its own, or a plugin's. At most 16 objects.
void cover(const void* address);

/// Whether it is one of the signals whose handlers we keep: SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT.
bool concerns(int signal);

/// What the program's sigaction() does for these signals once installed() (before: libc's own).
/// Returns 0, or -1 with errno as libc's.
int on_program_sigaction(int signal, const struct sigaction* action, struct sigaction* old);

/// To be called first in a forked child: another thread of the parent may have been inside. Async-signal-safe.
void on_fork_child();

}  // namespace bypass::runtime::crash
