#include "runtime/crash/crash.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "os/own/let_others_run.h"
#include "runtime/crash/crash_report.h"
#include "runtime/crash/crash_table.h"
#include "runtime/crash/device_memory.h"
#include "runtime/ports/plugin.h"

namespace bypass::runtime::crash {
namespace {

constinit std::array<Entry, kSignals.size()> g_program;
constinit std::atomic<bool> g_installed{false};
constinit std::array<std::atomic<bool>, kSignals.size()> g_ours;  // the signals whose handler is ours
constinit std::atomic_flag g_writing = ATOMIC_FLAG_INIT;
constinit Hooks g_hooks;
constinit Resume g_resume = nullptr;

// One writer of g_program at a time, with no signal during the write.
class Writing {
 public:
  Writing() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask_);
    while (g_writing.test_and_set(std::memory_order_acquire)) socket::let_others_run();
  }
  ~Writing() {
    g_writing.clear(std::memory_order_release);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  sigset_t mask_;
};

void on_signal(int signal, siginfo_t* info, void* context);

// Our handler with the program's flags and mask.
struct sigaction ours(const struct sigaction& program) {
  struct sigaction action = program;
  if (program.sa_handler == SIG_DFL) {
    // uses an alternate stack if there is one, so that an overflow of the first can be reported
    action.sa_flags = SA_ONSTACK;
    sigemptyset(&action.sa_mask);
  }
  action.sa_flags |= SA_SIGINFO;
  action.sa_sigaction = on_signal;
  return action;
}

// A real fault comes again when the faulting instruction runs again. A signal that was sent, or that reports an earlier
// event, must be sent again.
bool repeats(int signal, const siginfo_t& info) {
  return info.si_code > 0 && !(signal == SIGBUS && info.si_code == BUS_MCEERR_AO);
}

void take_default_action(int signal, siginfo_t* info) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  g_hooks.sigaction(signal, &action, nullptr);
  if (repeats(signal, *info)) return;
  syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, info);
}

void forward(int signal, siginfo_t* info, void* context) {
  const auto index = static_cast<std::size_t>(index_of(signal));
  const struct sigaction program = g_program[index].load();
  if (program.sa_handler == SIG_IGN && !repeats(signal, *info)) return;  // the program has just chosen to ignore it
  if (program.sa_handler == SIG_DFL || program.sa_handler == SIG_IGN) return take_default_action(signal, info);
  if ((program.sa_flags & SA_RESETHAND) != 0) {
    // The kernel has already reset our handler, so the program must find its action reset, too.
    struct sigaction reset = program;
    reset.sa_handler = SIG_DFL;
    reset.sa_flags &= ~SA_SIGINFO;
    const Writing writing;
    g_program[index].store(reset);
  }
  if ((program.sa_flags & SA_SIGINFO) != 0) {
    program.sa_sigaction(signal, info, context);
  } else {
    program.sa_handler(signal);
  }
}

bool is_ours(int signal, const siginfo_t& info, const void* context) {
  const bool by_itself = info.si_code > 0 || (signal == SIGABRT && info.si_pid == getpid());
  return by_itself && (covers(program_counter(context)) || (g_hooks.inside != nullptr && g_hooks.inside()));
}

constinit std::atomic<long> g_handling{0};  // the thread whose fault inside the library is being handled

/// A second thread that faults inside the library waits until the first one's fault has been handled, a second at most.
/// The program's handler for the first has often set the signal's default action, by which the second fault would end
/// the process in the middle of the handler's report. A handler that leaves by longjmp(3) keeps the place: hence the
/// limit.
class Handling {
 public:
  explicit Handling(bool waits) : self_(syscall(SYS_gettid)) {
    constexpr timespec kPause{0, 10'000'000};
    for (int i = 0; waits && i < 100; i++) {
      long other = 0;
      holds_ = g_handling.compare_exchange_strong(other, self_, std::memory_order_acq_rel);
      if (holds_ || other == self_) return;
      syscall(SYS_nanosleep, &kPause, nullptr);
    }
  }
  ~Handling() {
    if (holds_) g_handling.store(0, std::memory_order_release);
  }
  Handling(const Handling&) = delete;
  Handling& operator=(const Handling&) = delete;

 private:
  long self_;
  bool holds_ = false;
};

void on_signal(int signal, siginfo_t* info, void* context) {
  if (repeats(signal, *info) && g_resume != nullptr && g_resume(context)) return;
  if (signal == SIGBUS && repeats(signal, *info) && replace_device_memory(info->si_addr)) return;
  const int saved = errno;
  escape_from_report();
  const bool is_inside = is_ours(signal, *info, context);
  const Handling handling(is_inside && repeats(signal, *info));
  if (is_inside) report(signal, *info, context, g_hooks.doing == nullptr ? nullptr : g_hooks.doing());
  errno = saved;
  forward(signal, info, context);
}

// Copies only the part of the mask that the kernel knows: the rest of a sigset_t has no meaning.
void give_back(const struct sigaction& from, struct sigaction& to) {
  to.sa_sigaction = from.sa_sigaction;
  to.sa_flags = from.sa_flags;
  to.sa_restorer = from.sa_restorer;
  std::memcpy(&to.sa_mask, &from.sa_mask, _NSIG / 8);
}

// Sets `program` in the table, and ours (or nothing) in the kernel.
int put(int signal, const struct sigaction& program) {
  g_program[static_cast<std::size_t>(index_of(signal))].store(program);
  if (program.sa_handler == SIG_IGN) return g_hooks.sigaction(signal, &program, nullptr);
  const struct sigaction action = ours(program);
  return g_hooks.sigaction(signal, &action, nullptr);
}

}  // namespace

namespace {

// Puts our handler in the place of the program's, which the table keeps.
void take(int signal) {
  auto& ours = g_ours[static_cast<std::size_t>(index_of(signal))];
  struct sigaction program {};
  if (ours.load() || g_hooks.sigaction(signal, nullptr, &program) != 0) return;
  put(signal, program);
  ours.store(true, std::memory_order_release);
}

}  // namespace

bool concerns(int signal) {
  return index_of(signal) >= 0;
}
bool installed(int signal) {
  return concerns(signal) && g_ours[static_cast<std::size_t>(index_of(signal))].load(std::memory_order_acquire);
}

void guard_copies(SigactionCall sigaction, Resume resume) {
  const Writing writing;
  g_resume = resume;
  if (g_hooks.sigaction == nullptr) g_hooks.sigaction = sigaction;
  for (const int signal : {SIGSEGV, SIGBUS}) take(signal);
}

void install(const Hooks& hooks) {
  if (g_installed.load(std::memory_order_acquire)) return;
  std::string problem;
  const auto backtrace = reinterpret_cast<Backtrace>(plugin_function("crash", "bypass_backtrace", problem));
  const Writing writing;
  if (g_installed.load()) return;
  const SigactionCall known = g_hooks.sigaction;
  g_hooks = hooks;
  if (g_hooks.sigaction == nullptr) g_hooks.sigaction = known != nullptr ? known : ::sigaction;
  cover(reinterpret_cast<const void*>(&on_signal));
  set_backtrace(backtrace);
  for (const int signal : kSignals) take(signal);
  g_installed.store(true, std::memory_order_release);
}

int on_program_sigaction(int signal, const struct sigaction* action, struct sigaction* old) {
  const auto libc = g_hooks.sigaction == nullptr ? ::sigaction : g_hooks.sigaction;
  if (!installed(signal)) return libc(signal, action, old);
  const Writing writing;
  const struct sigaction before = g_program[static_cast<std::size_t>(index_of(signal))].load();
  if (action != nullptr) {
    // The kernel checks it and says which flags it keeps; then our handler replaces it.
    struct sigaction kept {};
    if (libc(signal, action, nullptr) != 0 || libc(signal, nullptr, &kept) != 0 || put(signal, kept) != 0) return -1;
  }
  if (old != nullptr) give_back(before, *old);
  return 0;
}

void on_fork_child() {
  g_writing.clear(std::memory_order_release);
  g_handling.store(0, std::memory_order_release);
  forget_report();
}

}  // namespace bypass::runtime::crash
