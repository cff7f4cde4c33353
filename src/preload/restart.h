// Restart: SA_RESTART's rule (signal(7)) for calls that a handler interrupted.
#pragma once

#include <errno.h>
#include <sys/time.h>

#include "preload/uses.h"
#include "socket/api.h"

namespace bypass::preload {

/// To be made before the call. again() is true if the call returned -EINTR, every handler that ran meanwhile was
/// installed with SA_RESTART, and the socket has no such timeout (a call with a timeout never restarts).
class Restart {
 public:
  Restart(const Use& use, int fd, int timeout_option) : use_(use), fd_(fd), timeout_option_(timeout_option) {}

  [[nodiscard]] bool again(long result) const {
    if (result != -EINTR) [[likely]]
      return false;
    const auto& now = socket::thread_signals;
    if (now.seen - before_.seen != now.restart_seen - before_.restart_seen) return false;
    timeval timeout{};
    socklen_t length = sizeof(timeout);
    socket::get_option(*use_, fd_, SOL_SOCKET, timeout_option_, &timeout, &length);
    return timeout.tv_sec == 0 && timeout.tv_usec == 0;
  }

 private:
  const Use& use_;
  int fd_;
  int timeout_option_;
  struct {
    unsigned seen = socket::thread_signals.seen;
    unsigned restart_seen = socket::thread_signals.restart_seen;
  } before_;
};

}  // namespace bypass::preload
