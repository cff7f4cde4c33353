#include "runtime/progress/program_threads.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "os/os.h"
#include "runtime/host.h"

namespace bypass::runtime {

namespace {

constexpr Duration kLookAtLeast = std::chrono::seconds(30);
constexpr Duration kLookUnderFilter = std::chrono::seconds(1);
/// The interval of looks at the other threads, once the first has ended.
constexpr Duration kLookNow = std::chrono::milliseconds(10);

/// "PID/NAME", of the first thread, below /proc/self/task.
struct PathOfFirst {
  explicit PathOfFirst(const char* name) {
    char* const end = std::to_chars(text, text + 12, os::getpid()).ptr;
    *end = '/';
    std::strcpy(end + 1, name);
  }
  char text[24];
};

/// The last field of /proc/PID/task/TID/stat (proc_pid_stat(5), exit_code).
int last_number(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const std::size_t space = text.find_last_of(' ');
  if (space == std::string_view::npos) return 0;
  int number = 0;
  std::from_chars(text.data() + space + 1, text.data() + text.size(), number);
  return number;
}

void* exit_by_itself(void*) {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  std::exit(0);
}

/// No handler of the program runs, as the program has no thread left.
[[noreturn]] void die_of(int signal) {
  struct {  // the kernel's struct sigaction
    std::uintptr_t handler, flags, restorer, mask;
  } const by_default{};
  const std::uint64_t bit = std::uint64_t{1} << (signal - 1);
  os::call(SYS_rt_sigaction, signal, os::address(&by_default), 0, sizeof bit);
  os::call(SYS_rt_sigprocmask, SIG_UNBLOCK, os::address(&bit), 0, sizeof bit);
  os::tgkill(os::getpid(), os::gettid(), signal);
  for (;;) os::call(SYS_exit_group, 128 + signal);
}

}  // namespace

void ProgramThreads::begin() {
  first_ended_ = others_lived_ = false;
  tasks_fd_ = own_high(static_cast<int>(os::open("/proc/self/task", O_PATH | O_DIRECTORY | O_CLOEXEC)));
  // This thread has the filters of the thread that made it.
  if (os::call(SYS_prctl, PR_GET_SECCOMP) > 0) expect(End::kByFilter);
}

void ProgramThreads::end() {
  if (tasks_fd_ < 0) return;
  own_descriptor(tasks_fd_, false);
  os::close(tasks_fd_);
  tasks_fd_ = -1;
}

void ProgramThreads::expect(End what) {
  End before = expected_.load(std::memory_order_relaxed);
  while (before < what && !expected_.compare_exchange_weak(before, what, std::memory_order_relaxed)) {
  }
}

Duration ProgramThreads::longest_sleep() const {
  if (tasks_fd_ < 0) return kNever - Instant{};
  switch (first_ended_ ? End::kNow : expected_.load(std::memory_order_relaxed)) {
    case End::kUnlikely:
      return kLookAtLeast;
    case End::kByFilter:
      return kLookUnderFilter;
    case End::kNow:
      break;
  }
  return kLookNow;
}

// /proc/self/task/TID/exe exists for a thread that has memory; a thread gives that up as it ends.
bool ProgramThreads::first_is_there() const {
  struct stat about {};
  const PathOfFirst path("exe");
  return os::call(SYS_newfstatat, tasks_fd_, os::address(path.text), os::address(&about), 0) != -ENOENT;
}

bool ProgramThreads::any_left(Instant now) {
  if (tasks_fd_ < 0 || now - looked_ < longest_sleep()) return true;
  looked_ = now;
  if (!first_ended_ && first_is_there()) return true;
  first_ended_ = true;
  // Each task is a folder there. The first task's folder stays as long as the process.
  struct stat tasks {};
  constexpr std::uint64_t kNotTasks = 2;
  if (os::call(SYS_fstat, tasks_fd_, os::address(&tasks)) != 0) return true;
  const bool others = tasks.st_nlink > kNotTasks + 1 + own_threads();
  others_lived_ = others_lived_ || others;
  return others;
}

int ProgramThreads::first_status() const {
  const PathOfFirst path("stat");
  const auto open = [&] { return os::call(SYS_openat, tasks_fd_, os::address(path.text), O_RDONLY | O_CLOEXEC); };
  long fd = open();
  if (fd == -EMFILE && os::close(0) == 0) fd = open();  // nobody reads it any more
  if (fd < 0) return 0;
  char text[1024];
  const long length = os::read(static_cast<int>(fd), text, sizeof text);
  os::close(static_cast<int>(fd));
  return length <= 0 ? 0 : last_number({text, static_cast<std::size_t>(length)});
}

// The last thread's status (Linux 6.2). If that is not the first thread, it counts as ended by itself.
int ProgramThreads::status() const {
  return others_lived_ ? 0 : first_status();
}

void end_without_program(bool exits, int status, void (*before_exit)()) {
  pthread_t thread{};
  if (exits && pthread_create(&thread, nullptr, exit_by_itself, nullptr) == 0) return;
  if (const int signal = status & 0x7f; signal != 0) die_of(signal);
  if (before_exit != nullptr) before_exit();
  for (;;) os::call(SYS_exit_group, status >> 8);
}

}  // namespace bypass::runtime
