// Scopes in which a thread may not be cancelled.
#pragma once

#include <pthread.h>

namespace bypass::socket {

/// The thread is not cancelled in this scope. Used around calls of the kernel that are cancellation points
/// (pthreads(7)), if the program's own call is not one, or has begun something that must be completed.
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
