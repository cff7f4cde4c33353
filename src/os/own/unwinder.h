// The unwinder that a library of ours has in itself.
#pragma once

#include <unwind.h>

namespace bypass::runtime {

/// Our copy of the unwinder is part of the library; a cancelled thread is unwound by libc's, which comes to our frames'
/// handlers, and so to our copy, before that has ever unwound anything itself: it then aborts over tables that its own
/// first unwinding fills in. To be called before a thread can be cancelled within.
inline void prepare_unwinder() {
  auto stop = [](_Unwind_Context*, void*) { return _URC_END_OF_STACK; };
  _Unwind_Backtrace(stop, nullptr);
}

}  // namespace bypass::runtime
