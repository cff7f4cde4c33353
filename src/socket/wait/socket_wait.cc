#include "socket/wait/socket_wait.h"

#include "os/own/let_others_run.h"
#include "socket/family/kin.h"

namespace bypass::socket {

void SocketCondition::yield_to_copy(Guard& guard) {
  hold(socket_);
  guard.pause();
  let_others_run();
  guard.resume();
  hold_end(socket_);
  // A thread that was killed during its copy never reports that it is done. If a process of the family has the wires,
  // that process notices.
  constexpr unsigned kLookEvery = 256;
  if (++yields_ % kLookEvery == 0 && has_kin() && shard().wires().owner_slot() == kNoSlot) sweep_family(guard);
}

int DualCondition::begin_asking(Guard& guard) {
  KernelHalf& half = *kernel_half(socket_);  // it has reported that there is something
  // Not the program's number, which may be closed and reused while this call goes on.
  const int number = half.number;
  take_back_news(half);
  half.taking++;
  guard.pause();
  return number;
}

void DualCondition::end_asking(Guard& guard, long answer) {
  guard.resume();
  KernelHalf& half = *kernel_half(socket_);
  half.taking--;
  note_answer(half, answer);
  if (answer == kAgain) return;
  // Other threads, among them spinning ones, found nothing while the flag was cleared.
  signal_idle(socket_);
  own_signals_++;
}

}  // namespace bypass::socket
