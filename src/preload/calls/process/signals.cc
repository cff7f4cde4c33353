#include "preload/calls/process/signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "os/os.h"
#include "os/program_memory.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "runtime/crash/crash.h"
#include "socket/api.h"

namespace bypass::preload {
namespace {

using Handler = void (*)(int, siginfo_t*, void*);

// What the program installed; the kernel has the trampoline. A handler without SA_SIGINFO also gets three arguments,
// and ignores the last two.
struct Installed {
  std::atomic<Handler> handler;
  std::atomic<int> flags;
};
constinit std::array<Installed, NSIG> installed{};
constinit std::atomic<bool> wrapping{false};
constinit std::atomic<std::uint64_t> interrupting{0};  // siginterrupt's set
thread_local constinit std::uint64_t held_back = 0;    // signals that we block until the lock is left

constexpr std::uint64_t bit_of(int signal) {
  return std::uint64_t{1} << (signal - 1);
}

long change_mask(int how, std::uint64_t set) {
  return os::call(SYS_rt_sigprocmask, how, reinterpret_cast<long>(&set), 0, sizeof(set));
}

// Queues the signal to the same thread again, blocked now and after this handler returns: the kernel keeps it for us.
void hold_back(int signal, siginfo_t* info, ucontext_t* context) {
  change_mask(SIG_BLOCK, bit_of(signal));
  long pid = os::call(SYS_getpid), tid = os::call(SYS_gettid);
  if (os::call(SYS_rt_tgsigqueueinfo, pid, tid, signal, reinterpret_cast<long>(info)) < 0) {
    os::call(SYS_tgkill, pid, tid, signal);
  }
  sigaddset(&context->uc_sigmask, signal);
  held_back |= bit_of(signal);
  socket::thread_signals.held_back = 1;
}

void redeliver() {
  std::uint64_t set = held_back;
  held_back = 0;
  socket::thread_signals.held_back = 0;
  if (set != 0) change_mask(SIG_UNBLOCK, set);
}

// Does the kernel's part of SA_RESETHAND: flags and mask stay.
void reset_to_default(int signal, int flags) {
  struct sigaction action;
  real.sigaction(signal, nullptr, &action);
  action.sa_handler = SIG_DFL;
  action.sa_flags = flags;
  real.sigaction(signal, &action, nullptr);
}

void note_stack(const stack_t& stack) {
  socket::thread_signals.handlers_low = reinterpret_cast<std::uintptr_t>(stack.ss_sp);
  socket::thread_signals.handlers_high = socket::thread_signals.handlers_low + stack.ss_size;
}

// A function of its own, as the trampoline must have nothing to clean up (see there).
[[gnu::noinline]] void end_sleep() {
  socket::end_sleep();
}

// A thread in libc's ppoll() can be cancelled anywhere (asynchronously), also in code that interrupts the call: here,
// and in calls of the library that the handler makes. So its cancellation waits for the handler's end (as in glibc 2.41
// and later), or for a cancellation point in the handler. Turning cancellation off is not enough: up to glibc 2.36, a
// cancellation under way does not check that. The first instructions can still be cancelled. If a function then has
// something to clean up, the process ends: so this function has nothing to clean up.
void trampoline(int signal, siginfo_t* info, void* context) {
  Installed& program = installed[static_cast<std::size_t>(signal)];
  auto& thread = socket::thread_signals;
  bool fault = (signal == SIGTRAP || signal == SIGSYS) && info->si_code > 0;
  if ((thread.in_lock > 0 || thread.ends) && !fault) return hold_back(signal, info, static_cast<ucontext_t*>(context));
  Handler handler = program.handler.load(std::memory_order_relaxed);
  int flags = program.flags.load(std::memory_order_relaxed);
  if ((flags & SA_RESETHAND) != 0) reset_to_default(signal, flags);
  int cancel_type = PTHREAD_CANCEL_DEFERRED;
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &cancel_type);
  note_stack(static_cast<ucontext_t*>(context)->uc_stack);
  if (thread.in_lock == 0) end_sleep();
  thread.seen = thread.seen + 1;
  if ((flags & SA_RESTART) != 0) thread.restart_seen = thread.restart_seen + 1;
  const unsigned outer = thread.handlers;
  const unsigned place = outer < thread.kHandlers ? outer : thread.kHandlers - 1;
  const std::uintptr_t shared = thread.handler_frames[place];  // all frames beyond the places share the last place
  thread.handler_frames[place] = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  thread.handlers = outer + 1;
  int depth = thread_path.depth;
  thread_path.depth = thread_path.least;  // the handler is the program's, whatever it interrupted; it may never return
  void** const copying = std::exchange(socket::copy_resumes_at, nullptr);
  handler(signal, info, context);
  socket::copy_resumes_at = copying;
  thread_path.depth = depth;
  thread.handler_frames[place] = shared;
  thread.handlers = outer;
  if (cancel_type != PTHREAD_CANCEL_DEFERRED) pthread_setcanceltype(cancel_type, nullptr);
}

bool is_trampoline(const struct sigaction& action) {
  return action.sa_sigaction == trampoline;
}

// The program's action in the form that the kernel gets.
struct sigaction behind_trampoline(int signal, const struct sigaction& action) {
  struct sigaction wrapped = action;
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return wrapped;
  Installed& program = installed[static_cast<std::size_t>(signal)];
  if (!is_trampoline(action)) {  // otherwise a call that we do not see, sigset(3), has given our own action back
    program.flags = action.sa_flags;
    program.handler = action.sa_sigaction;
  }
  wrapped.sa_sigaction = trampoline;
  // The trampoline does SA_RESETHAND's work, because a signal that is held back comes twice.
  wrapped.sa_flags = (action.sa_flags & ~SA_RESETHAND) | SA_SIGINFO;
  return wrapped;
}

void show_own(struct sigaction& old, Handler handler, int flags) {
  if (!is_trampoline(old)) return;
  old.sa_sigaction = handler;
  old.sa_flags = flags;
}

int change_action(int signal, const struct sigaction* action, struct sigaction* old) {
  if (!wrapping || goes_straight() || signal <= 0 || signal >= NSIG) return real.sigaction(signal, action, old);
  if (runtime::crash::concerns(signal)) {
    return runtime::crash::installed(signal) ? runtime::crash::on_program_sigaction(signal, action, old)
                                             : real.sigaction(signal, action, old);
  }
  Installed& program = installed[static_cast<std::size_t>(signal)];
  Handler handler = program.handler;
  int flags = program.flags;
  struct sigaction wrapped;
  if (action != nullptr) wrapped = behind_trampoline(signal, *action);
  int result = real.sigaction(signal, action != nullptr ? &wrapped : nullptr, old);
  if (result == 0 && old != nullptr) show_own(*old, handler, flags);
  return result;
}

// signal() and its historical relatives.
sighandler_t change_handler(int signal, sighandler_t handler, int flags, bool block_itself) {
  if (handler == SIG_ERR || signal <= 0 || signal >= NSIG) {
    errno = EINVAL;
    return SIG_ERR;
  }
  struct sigaction action {
  }, old;
  action.sa_handler = handler;
  action.sa_flags = flags;
  if (block_itself) sigaddset(&action.sa_mask, signal);
  return change_action(signal, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

sighandler_t bsd_signal_action(int signal, sighandler_t handler) {
  bool interrupts = signal > 0 && signal < NSIG && (interrupting & bit_of(signal)) != 0;
  return change_handler(signal, handler, interrupts ? 0 : SA_RESTART, true);
}

constexpr int kSystemVFlags = SA_RESETHAND | SA_NODEFER;

BYPASS_EXPORT(int, sigaction, (int signal, const struct sigaction* action, struct sigaction* old)) {
  return change_action(signal, action, old);
}

BYPASS_EXPORT(int, __sigaction, (int signal, const struct sigaction* action, struct sigaction* old)) {
  return change_action(signal, action, old);
}

BYPASS_EXPORT(sighandler_t, signal, (int signal, sighandler_t handler)) {
  return bsd_signal_action(signal, handler);
}

BYPASS_EXPORT(sighandler_t, bsd_signal, (int signal, sighandler_t handler)) {
  return bsd_signal_action(signal, handler);
}

BYPASS_EXPORT(sighandler_t, ssignal, (int signal, sighandler_t handler)) {
  return bsd_signal_action(signal, handler);
}

BYPASS_EXPORT(sighandler_t, sysv_signal, (int signal, sighandler_t handler)) {
  return change_handler(signal, handler, kSystemVFlags, false);
}

BYPASS_EXPORT(sighandler_t, __sysv_signal, (int signal, sighandler_t handler)) {
  return change_handler(signal, handler, kSystemVFlags, false);
}

BYPASS_EXPORT(sighandler_t, sigset, (int signal, sighandler_t handler)) {
  if (signal <= 0 || signal >= NSIG) {
    errno = EINVAL;
    return SIG_ERR;
  }
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, signal);
  struct sigaction action {
  }, old;
  const bool holds = handler == SIG_HOLD;
  action.sa_handler = handler;
  if (change_action(signal, holds ? nullptr : &action, &old) != 0) return SIG_ERR;
  if (pthread_sigmask(holds ? SIG_BLOCK : SIG_UNBLOCK, &one, &before) != 0) return SIG_ERR;
  return sigismember(&before, signal) != 0 ? SIG_HOLD : old.sa_handler;
}

BYPASS_EXPORT(int, siginterrupt, (int signal, int interrupts)) {
  struct sigaction action;
  if (change_action(signal, nullptr, &action) != 0) return -1;
  if (interrupts != 0) {
    interrupting |= bit_of(signal);
    action.sa_flags &= ~SA_RESTART;
  } else {
    interrupting &= ~bit_of(signal);
    action.sa_flags |= SA_RESTART;
  }
  return change_action(signal, &action, nullptr);
}

}  // namespace

void let_handlers_run() {
  socket::thread_signals.ends = false;
  if (socket::thread_signals.held_back != 0) redeliver();
}

void wrap_signal_handlers() {
  socket::redeliver_signals = redeliver;
  wrapping = true;
  runtime::crash::guard_copies(real.sigaction, socket::resume_copy);
  for (int signal = 1; signal < NSIG; signal++) {
    struct sigaction action;
    if (runtime::crash::concerns(signal) || real.sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN || is_trampoline(action)) continue;
    action = behind_trampoline(signal, action);
    real.sigaction(signal, &action, nullptr);
  }
}

}  // namespace bypass::preload
