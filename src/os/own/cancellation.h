// Where a thread may not be cancelled.
#pragma once

#include <pthread.h>

namespace bypass::socket {

/// For a scope: the thread is not cancelled here. Around calls of the kernel's that are cancellation points
/// (pthreads(7)) where the program's own call is not one, or has begun what must end.
class CancellationOff {
 public:
  CancellationOff() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancellationOff() { pthread_setcancelstate(before_, nullptr); }
  CancellationOff(const CancellationOff&) = delete;
  CancellationOff& operator=(const CancellationOff&) = delete;

 private:
  int before_ = 0;
};

}  // namespace bypass::socket
