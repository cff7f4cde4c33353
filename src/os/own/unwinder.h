// Prepares the copy of the unwinder that one of our libraries contains.
#pragma once

#include <unwind.h>

namespace bypass::runtime {

/// Our copy of the unwinder is part of the library, but a cancelled thread is unwound by libc's. Libc's unwinder calls
/// our frames' handlers, and so our copy, before that has ever unwound anything itself. The copy then aborts, because
/// its first own unwinding fills in its tables. To be called before a thread can be cancelled inside the library.
inline void prepare_unwinder() {
  auto stop = [](_Unwind_Context*, void*) { return _URC_END_OF_STACK; };
  _Unwind_Backtrace(stop, nullptr);
}

}  // namespace bypass::runtime
