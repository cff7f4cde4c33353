#include "runtime/keepsakes.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstring>

#include "runtime/host.h"
#include "runtime/log.h"
#include "runtime/own_descriptors.h"
#include "socket/kernel.h"
#include "socket/os.h"

namespace bypass::runtime {

void Keepsakes::make(std::size_t ports, std::uint32_t id) {
  each_.assign(ports, Keepsake{});
  id_ = id;
  for (Keepsake& keepsake : each_) {
    int pair[2] = {-1, -1};
    constexpr int kType = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    const long made = socket::os::call(SYS_socketpair, AF_UNIX, kType, 0, socket::os::address(pair));
    if (made < 0) {
      BYPASS_LOG_WARN("no keepsakes for forked processes: %s", strerrordesc_np(static_cast<int>(-made)));
      return drop();
    }
    keepsake = {own_high(pair[0]), own_high(pair[1])};
  }
}

void Keepsakes::empty() const {
  for (const Keepsake& keepsake : each_)
    for (char one = 0; socket::kernel->read(keepsake.look, &one, sizeof one) >= 0;) {
    }
}

void Keepsakes::drop() {
  own(false);
  for (const Keepsake& keepsake : each_)
    for (const int fd : {keepsake.put, keepsake.look})
      if (fd >= 0) socket::kernel->close(fd);
  each_.clear();
  id_ = 0;
}

void Keepsakes::own(bool ours) const {
  for (const Keepsake& keepsake : each_) {
    own_descriptor(keepsake.put, ours);
    own_descriptor(keepsake.look, ours);
  }
}

}  // namespace bypass::runtime
