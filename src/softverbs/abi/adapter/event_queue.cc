#include "softverbs/abi/adapter/event_queue.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "softverbs/abi/adapter/setup.h"

namespace bypass::softverbs {

EventSignal::~EventSignal() {
  const socket::CancellationOff off;
  if (fd_ >= 0) close(fd_);
  if (raise_fd_ != own_fd_) close_own(raise_fd_);
  close_own(own_fd_);
  close_own(sleep_fd_);
}

bool EventSignal::open(Kind kind) {
  if (kind == Kind::kEventFd) {
    fd_ = eventfd(0, EFD_CLOEXEC);
  } else {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    fd_ = ends[0];
    raise_fd_ = own_high(ends[1]);
  }
  if (fd_ < 0) return false;
  own_fd_ = own_high(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (own_fd_ < 0) return false;
  if (kind == Kind::kEventFd) raise_fd_ = own_fd_;
  sleep_fd_ = own_high(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  return sleep_fd_ >= 0;
}

void EventSignal::raise() const {
  os::eventfd_add(raise_fd_, 1);
}

// Never blocks: raise() was called, and there is no other reader.
void EventSignal::lower() const {
  os::eventfd_take(own_fd_);
}

void EventSignal::wake_sleeper() {
  if (sleepers_ == 0) return;
  sleepers_--;
  os::eventfd_add(sleep_fd_, 1);
}

bool EventSignal::is_blocking() const {
  return (fcntl(own_fd_, F_GETFL) & O_NONBLOCK) == 0;
}

bool EventSignal::begin_wait() {
  if (!is_blocking()) {
    errno = EAGAIN;
    return false;
  }
  sleepers_++;
  return true;
}

bool EventSignal::wait() const {
  eventfd_t count = 0;
  return read(sleep_fd_, &count, sizeof count) == static_cast<ssize_t>(sizeof count);
}

void EventSignal::abandon_wait() {
  if (sleepers_ > 0) {
    sleepers_--;
    return;
  }
  os::eventfd_take(sleep_fd_);
}

}  // namespace bypass::softverbs
