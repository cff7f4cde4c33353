// LinkWatch: one thread that sleeps until netlink tells that an interface has changed, and then has every port look at
// its own. So a port knows its link's state without asking for it.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "backends/packet/descriptor.h"
#include "backends/packet/frame_port.h"

namespace bypass::packet {

class LinkWatch {
 public:
  /// Looks at the port at once, and from then on; starts the thread with the first port. Returns 0 or an errno.
  int watch(FramePort* port);
  /// The port's look() does not run any more when this returns.
  void forget(FramePort* port);

 private:
  int start();
  static void run(void* self);

  std::mutex mutex_;
  std::vector<FramePort*> ports_;
  Descriptor netlink_;
  std::uint64_t thread_ = 0;
};

}  // namespace bypass::packet
