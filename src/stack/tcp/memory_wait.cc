#include "stack/tcp/memory_wait.h"

#include "stack/tcp/input.h"

namespace bypass::tcp {

void wait_for_memory(Core& core, Tcb& tcb) {
  if (tcb.starved) return;
  tcb.starved = true;
  tcb.accept_next = nullptr;
  (core.starved.tail != nullptr ? core.starved.tail->accept_next : core.starved.head) = &tcb;
  core.starved.tail = &tcb;
}

void stop_waiting(Core& core, Tcb& tcb) {
  if (!tcb.starved) [[likely]]
    return;
  Tcb* before = nullptr;
  for (Tcb* each = core.starved.head; each != &tcb; each = each->accept_next) before = each;
  (before != nullptr ? before->accept_next : core.starved.head) = tcb.accept_next;
  if (core.starved.tail == &tcb) core.starved.tail = before;
  tcb.accept_next = nullptr;
  tcb.starved = false;
}

void wake_for_memory(Env& env) {
  std::size_t room = env.core.memory.room();
  while (Tcb* tcb = env.core.starved.head) {
    if (room < SendRing::kFirstBlock) return;
    room -= SendRing::kFirstBlock;
    stop_waiting(env.core, *tcb);
    if (!tcb->orphan()) wake_writer(env, *tcb);
  }
}

}  // namespace bypass::tcp
