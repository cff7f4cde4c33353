#include "socket/socket_wait.h"

#include <sched.h>

namespace bypass::socket {

void SocketCondition::yield_to_copy(Guard& guard) {
  hold(socket_);
  guard.pause();
  sched_yield();
  guard.resume();
  hold_end(socket_);
}

int DualCondition::begin_asking(Guard& guard) {
  KernelHalf& half = *kernel_half(socket_);  // it has said that there is something
  // Not the program's number: that may be closed, and another's, while this call goes on.
  const int number = half.number;
  half.in = half.error = false;
  half.taking++;
  hold(socket_);
  guard.pause();
  return number;
}

void DualCondition::end_asking(Guard& guard, long answer) {
  guard.resume();
  hold_end(socket_);
  KernelHalf& half = *kernel_half(socket_);
  half.taking--;
  note_answer(half, answer);
  if (answer == kAgain) return;
  // Other threads found nothing while the flag was down, those that spin among them.
  signal_idle(socket_);
}

}  // namespace bypass::socket
