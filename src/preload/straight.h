// Whether a call goes straight to the kernel: the thread does the library's work, or it is a vfork child (own_work.h).
#pragma once

#include "os/own/own_work.h"

namespace bypass::preload {

using runtime::Inside;
using runtime::stay_outside;
using runtime::thread_path;

/// The rare part of goes_straight(): process.cc.
bool is_straight_path();

inline bool goes_straight() {
  if ((thread_path.depth | thread_path.vfork_parent) == 0) [[likely]]
    return false;
  return is_straight_path();
}

}  // namespace bypass::preload
