// Os: direct system calls, for code that must work in a signal handler, inside the shard's lock, or in a forked child's
// first steps, and must never reach an interposer, ours or another's. They do not set errno: results are the kernel's,
// a value or a negative error number.
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace bypass::os {

inline long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#else
#error "no system call sequence for this machine"
#endif
}

template <typename T>
long address(const T* p) {
  return reinterpret_cast<long>(p);
}

inline std::uint32_t getpid() {
  return static_cast<std::uint32_t>(call(SYS_getpid));
}
inline std::uint32_t gettid() {
  return static_cast<std::uint32_t>(call(SYS_gettid));
}
/// With signal 0: tells whether the thread exists (0 or -EPERM) or not (-ESRCH).
inline long tgkill(std::uint32_t pid, std::uint32_t tid, int signal) {
  return call(SYS_tgkill, pid, tid, signal);
}
inline long kill(std::uint32_t pid, int signal) {
  return call(SYS_kill, pid, signal);
}
inline long pidfd_open(std::uint32_t pid) {
  return call(SYS_pidfd_open, pid, 0);
}
inline long close(int fd) {
  return call(SYS_close, fd);
}
inline long open(const char* path, int flags) {
  return call(SYS_openat, AT_FDCWD, address(path), flags);
}
inline long read(int fd, void* data, std::size_t bytes) {
  return call(SYS_read, fd, address(data), static_cast<long>(bytes));
}
/// Fills all bytes, or returns false: a filter of system calls refuses getrandom(2), or the kernel does not have it. It
/// waits only while the machine starts. There must be no fallback: what can be guessed is no secret.
[[nodiscard]] inline bool fill_random(void* data, std::size_t bytes) {
  std::size_t filled = 0;
  while (filled < bytes) {
    const long r =
        call(SYS_getrandom, address(static_cast<char*>(data) + filled), static_cast<long>(bytes - filled), 0);
    if (r <= 0 && r != -EINTR) return false;
    if (r > 0) filled += static_cast<std::size_t>(r);
  }
  return true;
}
/// Adds to an eventfd(2)'s counter. The function after it takes what is there (from a semaphore: 1). They can fail in
/// no way that a caller could handle.
inline void eventfd_add(int fd, std::uint64_t count) {
  call(SYS_write, fd, address(&count), sizeof count);
}
inline void eventfd_take(int fd) {
  std::uint64_t count = 0;
  read(fd, &count, sizeof count);
}
/// What poll() reports for the descriptor now. Unlike libc's it is no cancellation point, so it may be used inside the
/// lock.
inline short poll_now(int fd, short events) {
  pollfd item{fd, events, 0};
  const timespec zero{};
  return call(SYS_ppoll, address(&item), 1, address(&zero), 0, 8) > 0 ? item.revents : short{0};
}
inline bool readable(int fd) {
  return poll_now(fd, POLLIN) != 0;
}
/// epoll_wait() without waiting. It is no cancellation point either, so an event that is reported once is never lost.
inline long epoll_now(int set, epoll_event* events, int count) {
  return call(SYS_epoll_pwait, set, address(events), count, 0, 0, 8);
}

// The futex words lie in memory that several processes share, so FUTEX_PRIVATE_FLAG is never set.

/// Sleeps while the word holds `expected`, at most for `nanoseconds` (-ETIMEDOUT). Returns on a wake-up or a signal,
/// and sometimes without a reason.
inline long futex_wait(const std::uint32_t* word, std::uint32_t expected, std::int64_t nanoseconds) {
  const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  return call(SYS_futex, address(word), FUTEX_WAIT, expected, address(&limit));
}
inline void futex_wake(const std::uint32_t* word, int count) {
  call(SYS_futex, address(word), FUTEX_WAKE, count);
}

/// When the process began, in clock ticks since boot (field 22 of /proc/PID/stat); 0 if that cannot be read.
[[nodiscard]] std::uint64_t start_time_of(std::uint32_t pid);
/// Whether a process's first thread is a zombie, though other threads may live. False if /proc does not say.
[[nodiscard]] bool has_first_thread_ended(std::uint32_t pid);
/// The inode of the file that a descriptor refers to; 0 if it cannot be read.
[[nodiscard]] std::uint64_t inode_of(int fd);
/// The inode of this process's pid namespace; 0 if it cannot be read.
[[nodiscard]] std::uint64_t pid_namespace();

}  // namespace bypass::os
