#include "socket/wait/async.h"

#include <fcntl.h>
#include <signal.h>

#include <cstring>

#include "observe/reasons.h"
#include "os/os.h"
#include "socket/policy.h"
#include "socket/socket.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace {

struct Event {
  int code;
  long band;
};

// sk_wake_async() and band_table of Linux.
Event event_of(std::uint32_t bits) {
  if ((bits & kIn) != 0) return {POLL_IN, POLLIN | POLLRDNORM};
  if ((bits & kError) != 0) return {POLL_ERR, POLLERR};
  if ((bits & kHangUp) != 0) return {POLL_HUP, POLLHUP | POLLERR};
  return {POLL_OUT, POLLOUT | POLLWRNORM | POLLWRBAND};
}

// Another process of the family may be the owner. Only that process's own kernel calls may send it more than a plain
// signal.
void queue(const AsyncOwner& owner, const siginfo_t& info) {
  const auto pid = static_cast<std::uint32_t>(owner.pid);
  long r = 0;
  switch (owner.type) {
    case F_OWNER_TID:
      r = os::call(SYS_rt_tgsigqueueinfo, os::getpid(), pid, info.si_signo, os::address(&info));
      if (r < 0) os::call(SYS_tkill, pid, info.si_signo);
      return;
    case F_OWNER_PGRP:
      os::call(SYS_kill, -owner.pid, info.si_signo);
      return;
    default:
      r = os::call(SYS_rt_sigqueueinfo, pid, info.si_signo, os::address(&info));
      if (r < 0) os::kill(pid, info.si_signo);
  }
}

}  // namespace

bool sets_async(int command) {
  return command == F_SETOWN || command == F_SETOWN_EX || command == F_SETSIG;
}

void note_async(File& file, int fd) {
  if (file.kind == FileKind::kEpoll) return;
  Socket& socket = socket_of(file);
  if (socket.details == nullptr) give_kernel_socket(socket, fd);  // other objects use the placeholder's file, too
  if (socket.details == nullptr) {
    policy.record_why(fd, static_cast<unsigned>(observe::Reason::kOptionUnsupported), "fcntl O_ASYNC");
    return;
  }
  f_owner_ex owner{};
  AsyncOwner& noted = socket.details->async;
  if (kernel->fcntl(fd, F_GETOWN_EX, &owner) == 0) {
    noted.type = static_cast<std::uint8_t>(owner.type);
    noted.pid = owner.pid;
  }
  noted.signal = static_cast<std::uint8_t>(kernel->fcntl(fd, F_GETSIG));
  noted.number = fd;
}

void send_async(File& file, std::uint32_t bits) {
  if (file.kind == FileKind::kEpoll) return;
  const Details* const details = socket_of(file).details;
  if (details == nullptr || details->async.pid == 0) return;
  const AsyncOwner& owner = details->async;
  siginfo_t info;
  std::memset(&info, 0, sizeof info);
  info.si_signo = owner.signal != 0 ? owner.signal : SIGIO;
  info.si_code = SI_KERNEL;
  if (owner.signal != 0) {
    const Event event = event_of(bits);
    info.si_code = event.code;
    info.si_band = event.band;
    info.si_fd = owner.number;
  }
  queue(owner, info);
}

}  // namespace bypass::socket
