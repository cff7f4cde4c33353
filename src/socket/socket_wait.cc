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

int DualCondition::begin_asking(Guard& guard) {
  KernelHalf& half = socket_.details->half;
  // Not the program's number: that may be closed, and another's, while this call goes on.
  const int number = half.number;
  half.in = half.error = false;
  half.taking++;
  socket_.users++;
  guard.pause();
  return number;
}

void DualCondition::end_asking(Guard& guard, long answer) {
  guard.resume();
  socket_.users--;
  KernelHalf& half = socket_.details->half;
  half.taking--;
  if (answer == kAgain) return;
  half.in = half.watched;
  doubt_kernel_half(half);
  // Other threads found nothing while the flag was down, those that spin among them.
  signal_idle(socket_);
}

}  // namespace bypass::socket
