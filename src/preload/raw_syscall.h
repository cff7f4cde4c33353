// System calls made by hand: where libc's table is not there yet, or its wrapper would be ourselves.
#pragma once

#include <errno.h>

namespace bypass::preload {

/// The kernel's answer: a result, or a negative errno.
inline long raw_syscall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
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

/// … as libc's wrappers have it: -1 and errno.
inline long with_errno(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace bypass::preload
