#include "backends/packet/link_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <cerrno>

#include "backends/packet/libc.h"

namespace bypass::packet {

int LinkWatch::start() {
  if (netlink_.is_open()) return 0;
  Descriptor socket(libc.socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (!socket.is_open() || libc.bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return errno;
  netlink_ = std::move(socket);
  const int error = host->run_thread("bypass-links", run, this, &thread_);
  if (error != 0) netlink_.close();
  return error;
}

int LinkWatch::watch(FramePort* port) {
  const std::lock_guard lock(mutex_);
  if (const int error = start(); error != 0) return error;
  port->look();  // it looks after the bind, because from then on changes are told
  ports_.push_back(port);
  return 0;
}

void LinkWatch::forget(FramePort* port) {
  const std::lock_guard lock(mutex_);
  std::erase(ports_, port);
}

void LinkWatch::run(void* self) {
  auto* const watch = static_cast<LinkWatch*>(self);
  const int netlink = watch->netlink_.get();
  std::byte told[8192];  // neither the contents nor a loss (ENOBUFS) matters: the ports look anew in any case
  while (libc.recv(netlink, told, sizeof told, 0) >= 0 || errno == ENOBUFS || errno == EINTR) {
    const std::lock_guard lock(watch->mutex_);
    for (FramePort* port : watch->ports_) port->look();
  }
}

}  // namespace bypass::packet
