// Wakeup: a port's wake-up descriptor. It is a level-triggered epoll descriptor over the kernel's sockets for the
// frames, and over an eventfd for anything else that receive() is to look at.
//
// Frames make it readable as long as they lie there. ring()'s event stays until fetch(), which arm() and disarm() call.
// So nothing is lost between arm() and poll(), and a sleeper does not spin.
#pragma once

#include "backends/packet/descriptor.h"

namespace bypass::packet {

class Wakeup {
 public:
  Wakeup();
  [[nodiscard]] bool is_open() const { return epoll_.is_open() && event_.is_open(); }
  void add(int fd);
  void remove(int fd);
  void ring() const;  // from any thread
  void fetch() const;
  [[nodiscard]] int descriptor() const { return epoll_.get(); }

 private:
  Descriptor epoll_, event_;
};

}  // namespace bypass::packet
