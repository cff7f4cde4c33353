// Whether a program that is about to be executed will run under this library, and may have this process's memory.
#pragma once

namespace bypass::preload {

struct ImageCheck {
  const char* why_not = nullptr;  // null: it will
  bool fails = false;             // the kernel refuses the exec
};

/// `environment`: the exec's. Some system calls.
ImageCheck check_image(const char* file, char* const* environment);

}  // namespace bypass::preload
