// LinkWatch: one descriptor that is readable when a link to another host, or its device, has something.
#pragma once

#include <cstdint>

namespace bypass::fastpath {
class LinkOwner;
}

namespace bypass::socket {

class LinkWatch {
 public:
  LinkWatch() = default;
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  /// -1: there is nothing to watch, or no descriptor to be had. A system call only when links have come since.
  int descriptor(const fastpath::LinkOwner& links);
  /// A forked child's, whose copy of the descriptor has been closed with all of ours.
  void forget();

 private:
  int fd_ = -1;
  std::uint32_t seen_ = 0;
};

}  // namespace bypass::socket
