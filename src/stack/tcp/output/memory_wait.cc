#include "stack/tcp/output/memory_wait.h"

#include "stack/tcp/input/input.h"

namespace bypass::tcp {

void wait_for_memory(Core& core, Tcb& tcb) {
  if (tcb.starved) return;
  tcb.starved = true;
  core.starved.push<&Tcb::accept_next>(tcb);
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
  constexpr std::size_t kFew = 8;  // so many connections may each get the least block
  std::size_t woken = env.core.memory.room() / SendRing::kFirstBlock;
  if (woken == 0 && SendRing::may_begin(env.core.memory)) woken = kFew;
  for (; woken != 0; woken--) {
    Tcb* const tcb = env.core.starved.head;
    if (tcb == nullptr) return;
    stop_waiting(env.core, *tcb);
    if (!tcb->orphan()) wake_writer(env, *tcb);
  }
}

}  // namespace bypass::tcp
