// The library's own descriptors (the arena's, the ports', eventfds) when the program closes descriptors.
#pragma once

#include "preload/acceleration.h"
#include "preload/straight.h"
#include "runtime/process.h"

namespace bypass::preload {

/// The program must not close this number, nor put another descriptor there. The library's own code may.
inline bool is_own_descriptor(int fd) {
  return has_started() && !goes_straight() && runtime::owns_descriptor(fd);
}

/// Where the kernel's table of descriptors would end without ours: after the program's highest open number, in words of
/// 64 bits. Without /proc it is FD_SETSIZE.
int end_of_programs_table();

/// Makes close_range for everything between our own descriptors.
int close_around_own(unsigned first, unsigned last, int flags);

}  // namespace bypass::preload
