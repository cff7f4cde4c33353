// The rest of what DPDK would do to the process it lives in: threads, affinity, output, getopt's state,
// start-up delays, and ending the program. Redirected by --wrap, or defined here under libc's own name
// (hidden, so that only the objects of this plugin see it).
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "backends/dpdk/card/vain_waits.h"
#include "backends/dpdk/eal/guard.h"
#include "backends/dpdk/eal/libc.h"

using bypass::dpdk::host;
using bypass::dpdk::libc;

// --- Threads: started by the host, which blocks their signals and marks them as ours
namespace {

struct ThreadStart {
  void* (*routine)(void*);
  void* argument;
  pthread_t self;
  sem_t running;
};

void run_start(void* argument) {
  auto* start = static_cast<ThreadStart*>(argument);
  void* (*const routine)(void*) = start->routine;
  void* const routine_argument = start->argument;
  start->self = pthread_self();
  sem_post(&start->running);  // `start` lies on the creator's stack: gone from here on
  routine(routine_argument);
}

void log_text(bypass::LogLevel level, const char* format, va_list arguments) {
  char text[512];
  vsnprintf(text, sizeof text, format, arguments);
  text[strcspn(text, "\n")] = '\0';
  if (text[0] != '\0') host->log(level, text);
}

constexpr std::string_view kNodes = "/sys/devices/system/node/node", kProcessors = "/sys/devices/system/cpu/cpu";

// The highest number of a processor that this machine can have: the end of a list such as "0-3" or "0,2-5".
unsigned long last_processor() {
  char text[256] = "";
  const int fd = libc.open("/sys/devices/system/cpu/possible", O_RDONLY | O_CLOEXEC, 0);
  const ssize_t n = fd >= 0 ? libc.read(fd, text, sizeof text - 1) : -1;
  if (fd >= 0) libc.close(fd);
  if (n <= 0 || n == sizeof text - 1) return ~0UL;
  const std::size_t last = std::string_view(text).find_last_of("-,");
  return strtoul(text + (last == std::string_view::npos ? 0 : last + 1), nullptr, 10);
}

bool node_is_there(unsigned long node) {
  enum : char { kUnknown, kAbsent, kPresent };
  static char nodes[64];
  if (node >= sizeof nodes) return true;  // not known
  if (nodes[node] == kUnknown) {
    char folder[64];
    snprintf(folder, sizeof folder, "%s%lu", kNodes.data(), node);
    nodes[node] = libc.access(folder, F_OK) == 0 ? kPresent : kAbsent;
  }
  return nodes[node] == kPresent;
}

// False: the path is of a NUMA node or a processor that does not exist.
bool is_there(const char* path) {
  static const unsigned long last = last_processor();
  char* end = nullptr;
  if (strncmp(path, kProcessors.data(), kProcessors.size()) == 0)
    return strtoul(path + kProcessors.size(), nullptr, 10) <= last;
  if (strncmp(path, kNodes.data(), kNodes.size()) != 0) return true;
  if (!node_is_there(strtoul(path + kNodes.size(), &end, 10))) return false;
  return strncmp(end, "/cpu", 4) != 0 || strtoul(end + 4, nullptr, 10) <= last;
}

}  // namespace

extern "C" {

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*routine)(void*), void* argument) {
  ThreadStart start{routine, argument, {}, {}};
  sem_init(&start.running, 0, 0);
  std::uint64_t id = 0;
  const int error = host->run_thread("bypass-dpdk", run_start, &start, &id);
  if (error == 0) {
    while (sem_wait(&start.running) != 0) continue;
    *thread = start.self;
  }
  sem_destroy(&start.running);
  return error;
}

// EAL pins the thread that starts it and spreads its own: the program's affinity is the program's.
int __wrap_pthread_setaffinity_np(pthread_t, size_t, const cpu_set_t*) {
  return 0;
}

// EAL raises RLIMIT_NOFILE to the hard limit, for memory of more files than ours. The limit is the program's, and its
// children's.
int __wrap_setrlimit64(int, const void*) {
  return 0;
}

// --- Delays
// At the start: the TSC is calibrated over 100 ms and rounded to 10 MHz; 1 ms gives the same rounded value, which is
// only good for coarse time-outs. The stack's clock does not come from EAL.
int __wrap_nanosleep(const timespec* wanted, timespec* left) {
  if (bypass::dpdk::waits_in_vain()) return 0;
  const timespec one_ms{0, 1'000'000};
  const bool calibration = wanted->tv_sec == 0 && wanted->tv_nsec == 100'000'000;
  return libc.nanosleep(calibration ? &one_ms : wanted, left);
}

// Drivers' waits for a card. give_up() needs a guarded call, which Device::ask() makes.
int __wrap_usleep(useconds_t us) {
  if (!bypass::dpdk::waits_in_vain()) {
    const timespec wanted{us / 1'000'000, static_cast<long>(us % 1'000'000) * 1000};
    return libc.nanosleep(&wanted, nullptr);
  }
  if (bypass::dpdk::waits_without_end()) bypass::dpdk::give_up_if_guarded("usleep", "the card does not answer");
  return 0;
}

// EAL asks for each of 1024 processors whether it is there, and looks for it under each of 32 NUMA nodes: thousands of
// calls, nearly all on what is absent, and 3 ms of a start.
int __wrap_access(const char* path, int mode) {
  if (!is_there(path)) {
    errno = ENOENT;
    return -1;
  }
  return libc.access(path, mode);
}

// EAL asks whether it runs with shared DPDK libraries, to load drivers from a folder. It does not.
void* __wrap_dlopen(const char* file, int flags) {
  return file != nullptr && strstr(file, "librte_") != nullptr ? nullptr : libc.dlopen(file, flags);
}

// The run-time folder (/var/run/dpdk/…): without shared files nothing is ever put there.
int __wrap_mkdir(const char* path, mode_t mode) {
  return strstr(path, "/dpdk") != nullptr ? 0 : libc.mkdir(path, mode);
}

// --- The program's environment, its random numbers, and programs that a driver would start
int __wrap_setenv(const char*, const char*, int) {
  return 0;
}
int __wrap_unsetenv(const char*) {
  return 0;
}
void __wrap_srand(unsigned) {}
// Drivers use it for numbers that need not be secret, such as the seed of a hash.
int __wrap_rand() {
  static std::uint32_t state = 0x9e3779b9;
  state = state * 1664525 + 1013904223;
  return static_cast<int>(state >> 1);
}
FILE* __wrap_popen(const char*, const char*) {
  errno = ENOSYS;
  return nullptr;
}

// --- Output of DPDK, which must not appear among the program's
int __wrap_printf(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  log_text(bypass::LogLevel::kDebug, format, arguments);
  va_end(arguments);
  return 0;
}
int __wrap___printf_chk(int, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  log_text(bypass::LogLevel::kDebug, format, arguments);
  va_end(arguments);
  return 0;
}
int __wrap___fprintf_chk(FILE* file, int, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int result = 0;
  if (file == stdout || file == stderr)
    log_text(bypass::LogLevel::kDebug, format, arguments);
  else
    result = vfprintf(file, format, arguments);
  va_end(arguments);
  return result;
}
int __wrap_fprintf(FILE* file, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int result = 0;
  if (file == stdout || file == stderr)
    log_text(bypass::LogLevel::kDebug, format, arguments);
  else
    result = vfprintf(file, format, arguments);
  va_end(arguments);
  return result;
}
int __wrap_puts(const char* text) {
  host->log(bypass::LogLevel::kDebug, text);
  return 0;
}
int __wrap_putchar(int c) {
  return c;
}
void __wrap_perror(const char* text) {
  host->log(bypass::LogLevel::kDebug, text);
}
void __wrap_openlog(const char*, int, int) {}
void __wrap_closelog() {}
void __wrap___syslog_chk(int, int, const char*, ...) {}

// --- Ending the program
void __wrap___rte_panic(const char* function, const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  bypass::dpdk::give_up(function, text);
}
void __wrap_exit(int) {
  bypass::dpdk::give_up("exit", "DPDK wanted to end the program");
}

// --- getopt: EAL's own copy, so that the program's is left alone. Only what EAL is given: `--name[=value]`
// and `-xVALUE`.
[[gnu::visibility("hidden")]] int optind = 1;
[[gnu::visibility("hidden")]] int optopt = 0;
[[gnu::visibility("hidden")]] char* optarg = nullptr;

[[gnu::visibility("hidden")]] int getopt_long(int argc, char* const* argv, const char*, const option* options,
                                              int* index) {
  if (optind >= argc) return -1;
  const char* word = argv[optind];
  if (word[0] != '-') return -1;
  optind++;
  if (word[1] != '-') {
    optarg = const_cast<char*>(word) + 2;
    return word[1];
  }
  const char* equals = strchr(word, '=');
  const std::size_t length = equals != nullptr ? static_cast<std::size_t>(equals - word) - 2 : strlen(word) - 2;
  for (int i = 0; options[i].name != nullptr; i++) {
    if (strlen(options[i].name) != length || strncmp(options[i].name, word + 2, length) != 0) continue;
    optarg = equals != nullptr ? const_cast<char*>(equals) + 1 : nullptr;
    if (index != nullptr) *index = i;
    if (options[i].flag == nullptr) return options[i].val;
    *options[i].flag = options[i].val;
    return 0;
  }
  return '?';
}

// --- Two string functions that Debian's DPDK takes from libbsd, which would bring its own entropy pool along
[[gnu::visibility("hidden")]] size_t strlcpy(char* to, const char* from, size_t size) {
  const size_t length = strlen(from);
  if (size != 0) {
    const size_t fits = length < size ? length : size - 1;
    memcpy(to, from, fits);
    to[fits] = '\0';
  }
  return length;
}
[[gnu::visibility("hidden")]] size_t strlcat(char* to, const char* from, size_t size) {
  const size_t before = strnlen(to, size);
  return before == size ? size + strlen(from) : before + strlcpy(to + before, from, size - before);
}

// --- NUMA: memory is placed by first touch, as the kernel does it; no libnuma (its constructor reads half of
// /sys when the plugin is opened).
[[gnu::visibility("hidden")]] int numa_available() {
  return -1;
}
[[gnu::visibility("hidden")]] void* numa_allocate_nodemask() {
  return nullptr;
}
[[gnu::visibility("hidden")]] void numa_bitmask_free(void*) {}
[[gnu::visibility("hidden")]] void numa_set_localalloc() {}
[[gnu::visibility("hidden")]] void numa_set_preferred(int) {}
[[gnu::visibility("hidden")]] long get_mempolicy(int* node, unsigned long*, unsigned long, void*, unsigned) {
  if (node != nullptr) *node = 0;
  return 0;
}
[[gnu::visibility("hidden")]] long set_mempolicy(int, const unsigned long*, unsigned long) {
  errno = ENOSYS;
  return -1;
}

}  // extern "C"
