// The kernel's answers (os/os.h) as libc's wrappers give them.
#pragma once

#include <cerrno>

namespace bypass::preload {

/// The kernel's answer as libc's wrappers have it: -1 and errno.
inline long with_errno(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace bypass::preload
