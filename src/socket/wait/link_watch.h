// LinkWatch: one descriptor that is readable when a link to another host, or the link's device, has something to do.
// Tests: tests/system/local_waits.py.
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

  /// -1: there is nothing to watch, or no descriptor could be made. Makes a system call only if links have changed
  /// since.
  int descriptor(const fastpath::LinkOwner& links);
  /// In a forked child whose copy of the descriptor was closed with all of ours.
  void forget();

 private:
  int fd_ = -1;
  std::uint32_t seen_ = 0;
};

}  // namespace bypass::socket
