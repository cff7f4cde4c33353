#include "socket/socket_wait.h"

#include <sched.h>

namespace bypass::socket {

void SocketCondition::yield_to_copy(Guard& guard) {
  socket_.users++;
  guard.pause();
  sched_yield();
  guard.resume();
  socket_.users--;
}

}  // namespace bypass::socket
