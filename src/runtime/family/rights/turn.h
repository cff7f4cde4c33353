// Turn: one process of a family at a time looks whether there is an arena for new rights, and makes one (privilege.h).
#pragma once

#include "runtime/family/arena.h"

namespace bypass::runtime {

struct Process;

/// Waits until no other living process has the turn, and takes it.
void take_turn(Process& p);
void end_turn(Process& p);
/// Wakes the processes that wait for the turn.
void tell_change(arena::Spare& spare);

}  // namespace bypass::runtime
