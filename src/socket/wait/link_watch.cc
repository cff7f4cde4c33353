#include "socket/wait/link_watch.h"

#include <sys/epoll.h>

#include <array>

#include "fastpath/link/link_owner.h"
#include "os/kernel.h"
#include "socket/policy.h"
#include "socket/shard.h"

namespace bypass::socket {

int LinkWatch::descriptor(const fastpath::LinkOwner& links) {
  if (links.changes() == seen_) return fd_;
  if (fd_ < 0) {
    fd_ = kernel->epoll_create1(EPOLL_CLOEXEC);
    fd_ = policy.own_descriptor(fd_);
    if (fd_ < 0) return -1;
  }
  seen_ = links.changes();
  std::array<int, fastpath::LinkOwner::kMostDescriptors> descriptors{};
  const std::size_t count = links.wait_descriptors(descriptors);
  for (std::size_t i = 0; i < count; i++) {
    epoll_event event{};
    event.events = EPOLLIN;
    (void)kernel->epoll_ctl(fd_, EPOLL_CTL_ADD, descriptors[i],
                            &event);  // EEXIST: it has been there; one that is closed leaves
  }
  return fd_;
}

void LinkWatch::forget() {
  fd_ = -1;
  seen_ = 0;
}

}  // namespace bypass::socket
