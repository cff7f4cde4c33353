#include "runtime/routing/kernel_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <span>

#include "os/net/kernel_network.h"
#include "os/os.h"
#include "os/own/own_descriptors.h"
#include "runtime/host.h"

namespace bypass::runtime {

namespace {

void close_one(int fd) {
  if (fd < 0) return;
  own_descriptor(fd, false);
  os::close(fd);
}

}  // namespace

// The descriptor; -1 with errno on failure.
int KernelWatch::make(int flags, unsigned groups) {
  const long made = os::call(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE);
  const int fd = made < 0 ? -1 : own_high(static_cast<int>(made));
  sockaddr_nl name{};
  name.nl_family = AF_NETLINK;
  name.nl_groups = groups;
  const long bound = made < 0 ? made : os::call(SYS_bind, fd, os::address(&name), sizeof name);
  if (bound == 0) return fd;
  close_one(fd);
  errno = static_cast<int>(-bound);
  return -1;
}

bool KernelWatch::open() {
  if (is_open()) return true;
  questions_ = make(0, 0);
  fd_.store(make(SOCK_NONBLOCK, RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE), std::memory_order_relaxed);
  if (is_open() && questions_ >= 0) return true;
  const int error = errno;
  close();
  errno = error;
  return false;
}

KernelNetwork KernelWatch::read() const {
  return questions_ >= 0 ? read_kernel_network(questions_) : read_kernel_network();
}

bool KernelWatch::hear() {
  if (!is_open()) return false;
  alignas(nlmsghdr) char told[8 << 10];
  bool changed = false;
  for (;;) {
    const long got = os::call(SYS_recvfrom, descriptor(), os::address(told), sizeof told, 0, 0, 0);
    if (got > 0) {
      changed = changed || has_network_change(std::as_bytes(std::span(told, static_cast<std::size_t>(got))));
    } else if (got == -ENOBUFS) {
      changed = true;  // more messages came than the socket holds
    } else if (got != -EINTR) {
      return changed;
    }
  }
}

void KernelWatch::close() {
  close_one(descriptor());
  close_one(questions_);
  forget();
}

void KernelWatch::forget() {
  fd_.store(-1, std::memory_order_relaxed);
  questions_ = -1;
}

}  // namespace bypass::runtime
