// LinkWatch: one thread that sleeps until netlink tells that an interface has changed, and then lets every port look at
// its own interface. So a port knows its link's state without asking the kernel.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "backends/packet/descriptor.h"
#include "backends/packet/frame_port.h"

namespace bypass::packet {

class LinkWatch {
 public:
  /// Lets the port look at once and after every change. The first port starts the thread. Returns 0 or an errno.
  int watch(FramePort* port);
  /// When this returns, the port's look() does not run any more.
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
