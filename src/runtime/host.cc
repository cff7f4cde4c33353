#include "runtime/host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "runtime/inside.h"
#include "runtime/log.h"
#include "runtime/plugin.h"
#include "runtime/uncancelled.h"
#include "socket/kernel.h"
#include "socket/os.h"

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

void* thread_main(void* raw) {
  ThreadStart start = *static_cast<ThreadStart*>(raw);
  delete static_cast<ThreadStart*>(raw);
  preload::stay_inside();
  pthread_setname_np(pthread_self(), start.name);
  g_own_threads.fetch_add(1, std::memory_order_relaxed);
  start.body(start.argument);
  g_own_threads.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

/// Of descriptors.
rlim_t soft_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 3;
}

constinit const char* const* g_environment = nullptr;

int base_of(rlim_t soft) {
  constexpr rlim_t kHighest = 4000;  // a descriptor table of 4,096 entries costs the kernel 32 KiB
  return static_cast<int>(std::min(soft - soft / 8, kHighest));
}

}  // namespace

int descriptor_base() {
  return base_of(soft_limit());
}

std::uint32_t most_own_descriptors() {
  constexpr rlim_t kFixed = 8, kMost = 1 << 20;  // the process's own; the last quarter is for what comes and goes
  const rlim_t soft = soft_limit();
  const rlim_t above = std::min(soft, kMost) - static_cast<rlim_t>(base_of(soft));
  return static_cast<std::uint32_t>(std::max(above / 4 * 3, kFixed) - kFixed);
}

namespace {

int refuse_number(int fd) {
  const int problem = errno;
  socket::kernel->close(fd);
  errno = problem;
  return -1;
}

/// Whether the program finds one more, now that we have this one.
bool is_last_number(int fd) {
  constexpr rlim_t kFew = 1024;  // what a program is given by default; of more it is not asked each time
  if (soft_limit() > kFew) return false;
  const int next = socket::kernel->fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (next >= 0) socket::kernel->close(next);
  return next < 0 && errno == EMFILE;
}

}  // namespace

int own_high(int fd) {
  if (fd < 0) return fd;
  const int base = descriptor_base();
  while (fd < base) {
    const int high = socket::kernel->fcntl(fd, F_DUPFD_CLOEXEC, base);
    if (high < 0) return refuse_number(fd);  // below the base each number is the program's
    own_descriptor(high, true);
    if (socket::kernel->fcntl(high, F_GETFD) >= 0) {
      socket::kernel->close(fd);
      fd = high;
      break;
    }
    own_descriptor(high, false);  // a thread of the program's has closed it before it was known as ours: closefrom()
  }
  own_descriptor(fd, true);
  if (!is_last_number(fd)) return fd;
  own_descriptor(fd, false);
  return refuse_number(fd);
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
  int failed = pthread_create(&thread, &attributes, thread_main, start);
  // The program's thread-local variables lie in it, too, and have no room there.
  if (failed == EINVAL) failed = pthread_create(&thread, nullptr, thread_main, start);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) {
    delete start;
    return failed;
  }
  if (id != nullptr) *id = thread;
  return 0;
}

std::uint32_t own_threads() {
  return g_own_threads.load(std::memory_order_relaxed);
}

std::uint64_t all_threads() {
  constexpr std::uint64_t kNotTasks = 2;  // the folder's links beside those of its folders
  struct stat tasks {};
  const long failed = socket::os::call(SYS_stat, socket::os::address("/proc/self/task"), socket::os::address(&tasks));
  return failed == 0 ? tasks.st_nlink - kNotTasks : 0;
}

void forget_own_threads() {
  g_own_threads.store(0, std::memory_order_relaxed);
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
    h.descriptor_base = descriptor_base;
    h.own_descriptor = own_descriptor;
    h.log = log_text;
    h.run_thread = run_thread;
    h.join_thread = join_thread;
    h.file_of_build = file_of_build;
    h.environment = [] {
      static constexpr const char* kNothing[] = {nullptr};
      if (g_environment != nullptr) return g_environment;
      // What a program with more rights than its caller was given by that one says nothing.
      return getauxval(AT_SECURE) != 0 ? static_cast<const char* const*>(kNothing) : environ;
    };
    return h;
  }();
  return host;
}

}  // namespace bypass::runtime
