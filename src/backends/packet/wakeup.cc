#include "backends/packet/wakeup.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <cstdint>

#include "backends/packet/libc.h"

namespace bypass::packet {

Wakeup::Wakeup() : epoll_(libc.epoll_create1(EPOLL_CLOEXEC)), event_(libc.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (is_open()) libc.epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event);
}

void Wakeup::add(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  libc.epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Wakeup::remove(int fd) {
  libc.epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Wakeup::ring() const {
  const std::uint64_t one = 1;
  if (libc.write(event_.get(), &one, sizeof one) < 0) return;  // never full: nobody counts to 2^64
}

void Wakeup::fetch() const {
  epoll_event events[4];
  libc.epoll_wait(epoll_.get(), events, 4, 0);
}

}  // namespace bypass::packet
