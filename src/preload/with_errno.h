// Turns the kernel's answers (os/os.h) into those of libc's wrappers.
#pragma once

#include <cerrno>

namespace bypass::preload {

/// The answer of libc's wrapper: -1 and errno.
inline long with_errno(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace bypass::preload
