#include "runtime/crash/crash_report.h"

#include <link.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <csetjmp>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "os/log/log.h"
#include "runtime/crash/crash.h"

namespace bypass::runtime::crash {
namespace {

constexpr int kMaxReports = 5;  // so that a program that survives its faults is not flooded

struct Range {
  std::atomic<std::uintptr_t> low{0};
  std::atomic<std::uintptr_t> high{0};
};
constinit std::array<Range, 16> g_ranges;
constinit std::atomic<unsigned> g_range_count{0};
constinit std::atomic<Backtrace> g_backtrace{nullptr};
constinit std::atomic<int> g_reports{0};

// The thread that writes a report, and its way out if the backtrace itself faults.
constinit std::atomic<int> g_reporter{0};
sigjmp_buf g_escape;

int thread_id() {
  return static_cast<int>(syscall(SYS_gettid));
}

struct Search {
  std::uintptr_t address;
  std::uintptr_t low, high;
};

// Loaded objects do not overlap: everything from the lowest to the highest segment belongs to one.
int find_object(dl_phdr_info* info, std::size_t /*size*/, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  std::uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const std::uintptr_t start = info->dlpi_addr + segment.p_vaddr;
    low = start < low ? start : low;
    high = start + segment.p_memsz > high ? start + segment.p_memsz : high;
  }
  if (search.address < low || search.address >= high) return 0;
  search.low = low;
  search.high = high;
  return 1;
}

void print_line(const char* text) {
  log_always("  %s", text);
}

void print_backtrace(void* context) {
  const Backtrace backtrace = g_backtrace.load(std::memory_order_acquire);
  if (backtrace != nullptr) {
    backtrace(context, print_line);
  } else {
    log_always("  no backtrace: libbypass-crash.so is not installed");
  }
}

// A fault in the backtrace comes as a nested signal, which must not be blocked.
void unblock(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  sigaddset(&set, SIGSEGV);
  sigaddset(&set, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

void set_backtrace(Backtrace backtrace) {
  g_backtrace.store(backtrace, std::memory_order_release);
}

void cover(const void* address) {
  Search search{reinterpret_cast<std::uintptr_t>(address), 0, 0};
  if (covers(address) || dl_iterate_phdr(find_object, &search) == 0) return;
  const unsigned place = g_range_count.load(std::memory_order_relaxed);
  if (place >= g_ranges.size()) return;
  g_ranges[place].low.store(search.low, std::memory_order_relaxed);
  g_ranges[place].high.store(search.high, std::memory_order_relaxed);
  g_range_count.store(place + 1, std::memory_order_release);  // with covers()'s acquire
}

bool covers(const void* address) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  const unsigned count = g_range_count.load(std::memory_order_acquire);
  for (unsigned i = 0; i < count; i++)
    if (value >= g_ranges[i].low.load(std::memory_order_relaxed) &&
        value < g_ranges[i].high.load(std::memory_order_relaxed))
      return true;
  return false;
}

const void* program_counter(const void* context) {
  const auto* const user = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(user->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(user->uc_mcontext.pc);
#else
#error "where does this processor keep the program counter?"
#endif
}

namespace {

// Several threads may fault for one cause. What follows the report may end the process. So a second thread waits until
// the first has finished, unless that takes too long.
void await_report(int reporter) {
  constexpr timespec kPause{0, 1'000'000};
  constexpr int kMostPauses = 2000;
  for (int i = 0; i < kMostPauses && g_reporter.load(std::memory_order_acquire) == reporter; i++)
    syscall(SYS_nanosleep, &kPause, nullptr);
}

}  // namespace

void report(int signal, const siginfo_t& info, void* context, const char* doing) {
  int reporter = 0;
  if (!g_reporter.compare_exchange_strong(reporter, thread_id(), std::memory_order_acq_rel))
    return await_report(reporter);
  if (g_reports.fetch_add(1, std::memory_order_relaxed) < kMaxReports) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (sigsetjmp(g_escape, 0) == 0) {
      unblock(signal);
      const char* const name = sigabbrev_np(signal);
      log_always("crash inside libbypass: SIG%s at address %p, while %s", name == nullptr ? "?" : name, info.si_addr,
                 doing == nullptr || *doing == 0 ? "doing what is not known" : doing);
      print_backtrace(context);
    } else {
      log_always("  the backtrace ends here: the stack is damaged");
    }
    log_always(
        "this is a fault of libbypass, or the program has passed a bad pointer to a call; the program's "
        "own handler has the signal next");
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  }
  g_reporter.store(0, std::memory_order_release);
}

void escape_from_report() {
  if (g_reporter.load(std::memory_order_acquire) == thread_id()) siglongjmp(g_escape, 1);
}

void forget_report() {
  g_reporter.store(0, std::memory_order_release);
}

}  // namespace bypass::runtime::crash
