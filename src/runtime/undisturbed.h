// Undisturbed: a stretch of a call that no handler and no cancellation may enter.
#pragma once

#include <pthread.h>
#include <signal.h>

#include "os/own/cancellation.h"
#include "runtime/host.h"
#include "socket/api.h"

namespace bypass::runtime {

/// A thread that holds one is not cancelled. No handler of the program runs on top, since it might ask for the ports,
/// too.
class Undisturbed {
 public:
  Undisturbed() {
    const sigset_t all = all_but_faults();
    pthread_sigmask(SIG_SETMASK, &all, &mask_);
    socket::thread_signals.serves_the_end = true;
  }
  ~Undisturbed() {
    socket::thread_signals.serves_the_end = before_;
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  const socket::CancellationOff uncancelled_;
  const bool before_ = socket::thread_signals.serves_the_end;
  sigset_t mask_;
};

}  // namespace bypass::runtime
