#include "runtime/family/handovers.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstring>
#include <utility>

#include "os/kernel.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/own_descriptors.h"
#include "runtime/host.h"

namespace bypass::runtime {

void Handovers::make(const std::vector<bool>& wanted, std::uint32_t id) {
  each_.assign(wanted.size(), Handover{});
  id_ = id;
  for (std::size_t i = 0; i < wanted.size(); i++) {
    if (!wanted[i]) continue;
    int pair[2] = {-1, -1};
    constexpr int kType = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    const long made = os::call(SYS_socketpair, AF_UNIX, kType, 0, os::address(pair));
    if (made < 0) {
      if (!std::exchange(told_, true))
        BYPASS_LOG_WARN(
            "should this process end before those that it forks, the kernel may refuse connections of theirs: %s",
            strerrordesc_np(static_cast<int>(-made)));
      return drop();
    }
    each_[i] = {own_high(pair[0]), own_high(pair[1])};
  }
}

std::vector<int> Handovers::descriptors() const {
  std::vector<int> all;
  for (const Handover& each : each_) all.insert(all.end(), {each.put, each.look});
  return all;
}

void Handovers::take_up(std::uint32_t id, std::span<const int> descriptors) {
  id_ = id;
  each_.clear();
  for (; descriptors.size() >= 2; descriptors = descriptors.subspan(2))
    each_.push_back({descriptors[0], descriptors[1]});
  own(true);
}

void Handovers::empty() const {
  for (std::size_t i = 0; i < each_.size(); i++) empty(i);
}

void Handovers::empty(std::size_t port) const {
  const Handover handover = of(port);
  for (char one = 0; handover.is_there() && socket::kernel->read(handover.look, &one, sizeof one) >= 0;) {
  }
}

void Handovers::drop() {
  own(false);
  for (const Handover& handover : each_)
    for (const int fd : {handover.put, handover.look})
      if (fd >= 0) socket::kernel->close(fd);
  each_.clear();
  id_ = 0;
}

void Handovers::own(bool ours) const {
  for (const Handover& handover : each_) {
    if (!handover.is_there()) continue;
    own_descriptor(handover.put, ours);
    own_descriptor(handover.look, ours);
  }
}

}  // namespace bypass::runtime
