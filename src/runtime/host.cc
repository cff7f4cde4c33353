#include "runtime/host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "os/kernel.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/own_work.h"
#include "os/own/uncancelled.h"
#include "runtime/crash/device_memory.h"
#include "runtime/high_numbers.h"
#include "runtime/ports/plugin.h"

namespace bypass::runtime {

namespace {

void* libc_function(const char* name) {
  if (void* const ours = uncancelled(name)) return ours;
  static void* const libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return dlsym(libc, name);
}

struct ThreadStart {
  void (*body)(void*);
  void* argument;
  char name[16];
};

std::atomic<std::uint32_t> g_own_threads{0};
std::atomic<std::uint32_t> g_beginning{0};  // threads that have been made, and have not run yet
thread_local constinit bool g_is_own_thread = false;

void note_begun() {
  if (g_beginning.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&g_beginning), INT_MAX);
}

void* thread_main(void* raw) {
  ThreadStart start = *static_cast<ThreadStart*>(raw);
  delete static_cast<ThreadStart*>(raw);
  stay_inside();
  g_is_own_thread = true;
  pthread_setname_np(pthread_self(), start.name);
  g_own_threads.fetch_add(1, std::memory_order_relaxed);
  note_begun();
  start.body(start.argument);
  g_own_threads.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

constinit const char* const* g_environment = nullptr;

}  // namespace

std::uint32_t most_own_descriptors() {
  // kFixed: the process's own; the last quarter of the limit is for those that come and go
  constexpr rlim_t kFixed = 8, kMost = 1 << 20;
  const rlim_t above = std::min(soft_limit(), kMost) - static_cast<rlim_t>(descriptor_base());
  return static_cast<std::uint32_t>(std::max(above / 4 * 3, kFixed) - kFixed);
}

namespace {

int refuse_number(int fd) {
  const int problem = errno;
  socket::kernel->close(fd);
  errno = problem;
  return -1;
}

/// Whether the number is one of the program's, and the program would find no other now that we have this one.
bool is_last_number(int fd) {
  constexpr rlim_t kFew = 1024;  // a usual default; a program with more numbers is not checked each time
  const rlim_t soft = soft_limit();
  if (soft > kFew || static_cast<rlim_t>(fd) >= soft) return false;
  const int next = socket::kernel->fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (next >= 0) socket::kernel->close(next);
  return next < 0 && errno == EMFILE;
}

int own(int fd, int (*copy)(int)) {
  if (fd < 0) return fd;
  for (;;) {
    const int high = copy(fd);
    if (high < 0 && fd < descriptor_base()) return refuse_number(fd);  // below the base each number is the program's
    if (high < 0) break;
    own_descriptor(high, true);
    if (socket::kernel->fcntl(high, F_GETFD) >= 0) {
      socket::kernel->close(fd);
      fd = high;
      break;
    }
    own_descriptor(high, false);  // a thread of the program has closed it before it was known as ours: closefrom()
  }
  own_descriptor(fd, true);
  if (!is_last_number(fd)) return fd;
  own_descriptor(fd, false);
  return refuse_number(fd);
}

}  // namespace

int own_high(int fd) {
  return own(fd, copy_high);
}

int own_passing(int fd) {
  return own(fd, copy_within_limit);
}

int own_copy(int fd) {
  const int copy = socket::kernel->fcntl(fd, F_DUPFD_CLOEXEC, 0);
  const int high = own_passing(copy);
  if (copy < 0 || high != copy) return high;
  own_descriptor(copy, false);
  os::close(copy);
  return -1;
}

int run_thread(const char* name, void (*body)(void*), void* argument, std::uint64_t* id) {
  auto* start = new ThreadStart{body, argument, {}};
  __builtin_strncpy(start->name, name, sizeof start->name - 1);
  const sigset_t all = all_but_faults();
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_t thread{};
  Inside inside;  // glibc's thread creation maps and opens nothing of the program's
  g_beginning.fetch_add(1, std::memory_order_acq_rel);
  int failed = pthread_create(&thread, &attributes, thread_main, start);
  // The thread's stack also holds the program's thread-local variables, for which there is no room.
  if (failed == EINVAL) failed = pthread_create(&thread, nullptr, thread_main, start);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) {
    delete start;
    note_begun();
    return failed;
  }
  if (id != nullptr) *id = thread;
  return 0;
}

std::uint32_t own_threads() {
  return g_own_threads.load(std::memory_order_relaxed);
}

std::uint64_t all_threads() {
  constexpr std::uint64_t kNotTasks = 2;  // the folder's links besides those of its folders
  struct stat tasks {};
  const long failed = os::call(SYS_stat, os::address("/proc/self/task"), os::address(&tasks));
  return failed == 0 ? tasks.st_nlink - kNotTasks : 0;
}

bool is_own_thread() {
  return g_is_own_thread;
}

void forget_own_threads() {
  g_own_threads.store(0, std::memory_order_relaxed);
  g_beginning.store(0, std::memory_order_relaxed);
}

void await_beginning_threads() {
  constexpr std::int64_t kLook = 10'000'000;  // ns
  const auto* const word = reinterpret_cast<const std::uint32_t*>(&g_beginning);
  for (std::uint32_t left = 0; (left = g_beginning.load(std::memory_order_acquire)) != 0;)
    os::futex_wait(word, left, kLook);
}

void join_thread(std::uint64_t id) {
  pthread_join(id, nullptr);
}

void use_environment(const char* const* entries) {
  g_environment = entries;
}

const Host& backend_host() {
  static const Host host = [] {
    Host h;
    h.libc = libc_function;
    h.copy_high = copy_high;
    h.own_descriptor = own_descriptor;
    h.log = log_text;
    h.run_thread = run_thread;
    h.join_thread = join_thread;
    h.file_of_build = file_of_build;
    h.guard_device_memory = crash::guard_device_memory;
    h.environment = [] {
      static constexpr const char* kNothing[] = {nullptr};
      if (g_environment != nullptr) return g_environment;
      // If the program has more rights than its caller, the caller's variables are ignored.
      return getauxval(AT_SECURE) != 0 ? static_cast<const char* const*>(kNothing) : environ;
    };
    return h;
  }();
  return host;
}

}  // namespace bypass::runtime
