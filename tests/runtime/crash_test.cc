// A crash inside the library is reported. The program's signals behave as without the library.
#include "runtime/crash/crash.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <csetjmp>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "os/log/log.h"
#include "runtime/crash/device_memory.h"

namespace bypass::runtime {
namespace {

bool g_inside = false;
bool inside() {
  return g_inside;
}
const char* doing() {
  return "delivering a batch of port 0";
}

[[gnu::noinline]] void touch_nothing() {
  static volatile char* const nowhere =
      static_cast<volatile char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  *nowhere = 1;
}

struct Outcome {
  int status = 0;
  std::string log;
};

// Runs `body` in a child with default signals. Returns what it logged and how it ended. The child's own code lies in
// the test program, which the handler takes for the library. So `inside` cases need nothing more.
Outcome in_child(const std::function<void()>& body) {
  const int log = memfd_create("log", 0);
  const pid_t child = fork();
  if (child == 0) {
    start_log(LogLevel::kWarn, log);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(signal, SIG_DFL);
    body();
    _exit(0);
  }
  Outcome outcome;
  waitpid(child, &outcome.status, 0);
  outcome.log.resize(static_cast<std::size_t>(lseek(log, 0, SEEK_END)));
  EXPECT_EQ(pread(log, outcome.log.data(), outcome.log.size(), 0), static_cast<ssize_t>(outcome.log.size()));
  close(log);
  return outcome;
}

void install() {
  crash::install({inside, doing, nullptr});
}
bool killed_by(const Outcome& outcome, int signal) {
  return WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == signal;
}
bool exited_with(const Outcome& outcome, int code) {
  return WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == code;
}

void program_handles(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  crash::on_program_sigaction(signal, &action, nullptr);
}

TEST(Crash, RegistersThatVanish_AreOnesUntilTheDriverStops) {
  const Outcome outcome = in_child([] {
    install();
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const int file = memfd_create("registers", 0);
    if (ftruncate(file, static_cast<off_t>(page)) != 0) _exit(9);
    auto* const begin = static_cast<volatile char*>(mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    crash::guard_device_memory(const_cast<const char*>(begin), page, true);
    begin[8] = 7;
    if (ftruncate(file, 0) != 0) _exit(9);
    if (begin[12] != static_cast<char>(0xff)) _exit(1);  // the fault is answered here
    begin[8] = 5;
    if (begin[8] != 5) _exit(2);
    crash::guard_device_memory(const_cast<const char*>(begin), page, false);
    _exit(42);
  });
  EXPECT_TRUE(exited_with(outcome, 42)) << outcome.status;
  EXPECT_EQ(outcome.log, "");
}

TEST(Crash, MappedFileThatVanishes_IsTheProgramsFault) {
  const Outcome outcome = in_child([] {
    install();
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const int file = memfd_create("file", 0);
    auto* const begin = static_cast<volatile char*>(mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    crash::guard_device_memory(const_cast<const char*>(begin), page, true);
    crash::guard_device_memory(const_cast<const char*>(begin), page, false);
    begin[0] = 1;
  });
  EXPECT_TRUE(killed_by(outcome, SIGBUS));
}

TEST(Crash, FaultInside_IsReportedThenKills) {
  const Outcome outcome = in_child([] {
    install();
    g_inside = true;
    touch_nothing();
  });
  EXPECT_TRUE(killed_by(outcome, SIGSEGV)) << outcome.status;
  EXPECT_NE(outcome.log.find("crash inside libbypass: SIGSEGV"), std::string::npos) << outcome.log;
  EXPECT_NE(outcome.log.find("while delivering a batch of port 0"), std::string::npos);
  EXPECT_NE(outcome.log.find("touch_nothing"), std::string::npos) << "the backtrace names the function\n"
                                                                  << outcome.log;
}

TEST(Crash, ProgramsHandler_RunsAfterTheReport) {
  const Outcome outcome = in_child([] {
    program_handles(
        SIGSEGV, [](int) { _exit(42); }, 0);
    install();
    g_inside = true;
    touch_nothing();
  });
  EXPECT_TRUE(exited_with(outcome, 42)) << outcome.status << outcome.log;
  EXPECT_NE(outcome.log.find("crash inside"), std::string::npos);
}

// All threads fault for one reason. The first that has finished ends the process, but not before the report is written.
TEST(Crash, ManyThreadsFaultAtOnce_TheReportIsWhole) {
  for (int round = 0; round < 10; round++) {
    const Outcome outcome = in_child([] {
      program_handles(
          SIGSEGV, [](int) { _exit(43); }, 0);
      install();
      g_inside = true;
      std::barrier together(4);
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
          together.arrive_and_wait();
          touch_nothing();
        });
      for (std::thread& thread : threads) thread.join();
    });
    EXPECT_TRUE(exited_with(outcome, 43)) << outcome.status << outcome.log;
    EXPECT_NE(outcome.log.find("crash inside"), std::string::npos);
    EXPECT_NE(outcome.log.find("this is a fault of libbypass, or the program has passed a bad pointer"),
              std::string::npos)
        << outcome.log;
  }
}

std::atomic<bool> g_second_may_fault{false};

// As faulthandler of Python does: the default action is set before the report is written.
void report_while_another_faults(int) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  crash::on_program_sigaction(SIGSEGV, &action, nullptr);
  g_second_may_fault.store(true);
  usleep(50'000);  // time for the other thread's fault, which ended the process
  _exit(42);
}

TEST(Crash, SecondThreadsFault_WaitsForTheHandlerOfTheFirst) {
  const Outcome outcome = in_child([] {
    install();
    program_handles(SIGSEGV, report_while_another_faults, 0);
    std::thread second([] {
      while (!g_second_may_fault.load()) std::this_thread::yield();
      touch_nothing();
    });
    touch_nothing();
    second.join();
  });
  EXPECT_TRUE(exited_with(outcome, 42)) << outcome.status;
}

TEST(Crash, InstalledByManyThreadsAtOnce_ProgramsHandlerStillRuns) {
  const Outcome outcome = in_child([] {
    ::signal(SIGSEGV, [](int) { _exit(45); });
    constexpr int kThreads = 8;
    std::barrier together(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++)
      threads.emplace_back([&] {
        together.arrive_and_wait();
        install();
      });
    for (std::thread& thread : threads) thread.join();
    touch_nothing();
  });
  EXPECT_TRUE(exited_with(outcome, 45)) << outcome.status << outcome.log;
}

TEST(Crash, HandlerSetLater_GetsTheSignalAndItsInformation) {
  const Outcome outcome = in_child([] {
    install();
    struct sigaction action {};
    action.sa_sigaction = [](int signal, siginfo_t* info, void* context) {
      _exit(signal == SIGSEGV && info->si_code == SEGV_ACCERR && context != nullptr ? 43 : 1);
    };
    action.sa_flags = SA_SIGINFO;
    crash::on_program_sigaction(SIGSEGV, &action, nullptr);
    touch_nothing();
  });
  EXPECT_TRUE(exited_with(outcome, 43)) << outcome.status;
}

TEST(Crash, SignalOfAnotherProcess_IsNotReported) {
  const Outcome outcome = in_child([] {
    install();
    g_inside = true;
    if (fork() == 0) {
      kill(getppid(), SIGSEGV);
      _exit(0);
    }
    for (;;) pause();
  });
  EXPECT_TRUE(killed_by(outcome, SIGSEGV)) << outcome.status;
  EXPECT_EQ(outcome.log, "");
}

TEST(Crash, Abort_InsideIsReportedAndKills) {
  const Outcome outcome = in_child([] {
    install();
    g_inside = true;
    abort();
  });
  EXPECT_TRUE(killed_by(outcome, SIGABRT)) << outcome.status;
  EXPECT_NE(outcome.log.find("SIGABRT"), std::string::npos);
}

TEST(Crash, IgnoredSignal_StaysIgnored) {
  const Outcome outcome = in_child([] {
    crash::on_program_sigaction(SIGABRT, nullptr, nullptr);
    ::signal(SIGABRT, SIG_IGN);
    install();
    raise(SIGABRT);
    struct sigaction kernels {};
    sigaction(SIGABRT, nullptr, &kernels);
    _exit(kernels.sa_handler == SIG_IGN ? 44 : 1);  // exec passes it on
  });
  EXPECT_TRUE(exited_with(outcome, 44)) << outcome.status;
}

TEST(Crash, ResetHand_HandlesOnceThenDefault) {
  const Outcome outcome = in_child([] {
    install();
    program_handles(
        SIGFPE, [](int) {}, static_cast<int>(SA_RESETHAND));
    raise(SIGFPE);
    struct sigaction now {};
    crash::on_program_sigaction(SIGFPE, nullptr, &now);
    if (now.sa_handler != SIG_DFL) _exit(1);
    raise(SIGFPE);
  });
  EXPECT_TRUE(killed_by(outcome, SIGFPE)) << outcome.status;
}

int g_depth = 0;
int g_deepest = 0;
int g_calls = 0;
void nest(int signal) {
  g_deepest = std::max(g_deepest, ++g_depth);
  if (g_depth < 3 && ++g_calls < 5) raise(signal);
  g_depth--;
}

TEST(Crash, NoDefer_NestsAndWithoutItDoesNot) {
  const auto deepest = [](int flags) {
    return in_child([flags] {
      install();
      program_handles(SIGILL, nest, flags);
      raise(SIGILL);
      _exit(g_deepest);
    });
  };
  EXPECT_TRUE(exited_with(deepest(SA_NODEFER), 3));
  EXPECT_TRUE(exited_with(deepest(0), 1));
}

TEST(Crash, MaskAndStack_AreTheProgramsOwn) {
  const Outcome outcome = in_child([] {
    install();
    static char stack[64 * 1024];
    stack_t alternate{};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action {};
    action.sa_handler = [](int) {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      const char here = 0;
      const bool on_stack = &here >= stack && &here < stack + sizeof stack;
      _exit(on_stack && sigismember(&mask, SIGUSR1) == 1 && sigismember(&mask, SIGUSR2) == 0 ? 45 : 1);
    };
    sigaddset(&action.sa_mask, SIGUSR1);
    action.sa_flags = SA_ONSTACK;
    crash::on_program_sigaction(SIGBUS, &action, nullptr);
    raise(SIGBUS);
  });
  EXPECT_TRUE(exited_with(outcome, 45)) << outcome.status;
}

// A program must read back what it would read without the library, flag by flag.
TEST(Crash, ProgramsView_IsTheKernels) {
  const Outcome outcome = in_child([] {
    const auto round_trip = [](auto&& act) {
      struct sigaction set {
      }, got{};
      set.sa_handler = nest;
      sigaddset(&set.sa_mask, SIGUSR2);
      set.sa_flags = SA_RESTART | SA_NODEFER;
      act(SIGSEGV, &set, nullptr);
      act(SIGSEGV, nullptr, &got);
      return got;
    };
    const struct sigaction plain = round_trip(::sigaction);
    ::signal(SIGSEGV, SIG_DFL);
    install();
    const struct sigaction seen = round_trip(crash::on_program_sigaction);
    const bool same = plain.sa_handler == seen.sa_handler && plain.sa_flags == seen.sa_flags &&
                      std::memcmp(&plain.sa_mask, &seen.sa_mask, _NSIG / 8) == 0;
    _exit(same ? 46 : 1);
  });
  EXPECT_TRUE(exited_with(outcome, 46)) << outcome.status;
}

TEST(Crash, OtherSignals_GoToLibc) {
  const Outcome outcome = in_child([] {
    install();
    struct sigaction action {
    }, kernels{};
    action.sa_handler = nest;
    crash::on_program_sigaction(SIGUSR1, &action, nullptr);
    sigaction(SIGUSR1, nullptr, &kernels);
    const bool bad = crash::on_program_sigaction(SIGKILL, &action, nullptr) == -1 && errno == EINVAL;
    _exit(kernels.sa_handler == nest && bad ? 47 : 1);
  });
  EXPECT_TRUE(exited_with(outcome, 47)) << outcome.status;
}

// A runtime such as Java's handles its own faults and goes on.
sigjmp_buf g_back;
TEST(Crash, ProgramThatSurvivesFaults_GoesOn) {
  const Outcome outcome = in_child([] {
    install();
    program_handles(
        SIGSEGV, [](int) { siglongjmp(g_back, 1); }, 0);
    volatile int faults = 0;
    while (faults < 100)
      if (sigsetjmp(g_back, 1) == 0) {
        touch_nothing();
      } else {
        faults = faults + 1;
      }
    _exit(48);
  });
  EXPECT_TRUE(exited_with(outcome, 48)) << outcome.status;
  EXPECT_LT(outcome.log.size(), 60'000U) << "a few reports, not a hundred";
}

}  // namespace
}  // namespace bypass::runtime
