// Privilege: what a process does with memory that it shares with others, when it gives rights up.
//
// An arena is for processes that, by the kernel's rules, could do to each other what they can do by the memory
// (runtime/family/standing.h). A process that is about to have fewer rights than the rest of its family leaves their
// arena before the call is made. It goes on with a copy of its own, at the same addresses. Connections that it shares
// with others over other memory go back to the kernel before that. In a family on a port, the processes with the same
// new rights share one copy, with a driver for the ports (spare.h, driver.h). docs/trust.md says what stays and what
// goes.
#pragma once

#include <cstdint>

#include "runtime/family/rights/driver.h"
#include "runtime/family/standing.h"

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

/// One change of the process's rights, in these steps: begin_change(); if `changes`, give_back() for each number of the
/// process, and leave_arena(); then the call; then end_change().
struct RightsChange {
  bool changes = false;     // there is something to do
  bool leaves = false;      // others of the family keep the rights
  bool progressed = false;  // the progress thread ran
  bool moves = false;       // it moves to the arena of those on a port that have given up the same rights
  bool founds = false;      // … it is the first of them, and makes that arena
  Driver driver;            // … or a process that has made a driver for it
  bool later = false;       // … the driver opens the ports when the process needs them
  int noted = -1;           // a socket that keeps the driver alive until the process is there, where it has no listener
  Standing then;            // the standing that the process will have
};
/// Called before the change, for each number of the process. A driver of the processes with the same new rights then
/// sees that the socket is open.
void note_socket(const socket::File& file, int fd);
/// Has each connection of the process pumped (pump_process.h).
using PumpNumbers = void (*)();
[[nodiscard]] RightsChange begin_change(const Standing& then, PumpNumbers pump_numbers);
/// For a number's object: the parts of it in memory that another process has, too, go back to the kernel.
void give_back(socket::File& file, int fd, const RightsChange& change);
/// Leaves the arena. False: there is no memory for a copy. The arena and everything in it is gone all the same, and
/// every number is the kernel's. Where the process `moves`, it has no arena until end_change().
[[nodiscard]] bool leave_arena(RightsChange& change);
/// Called after the call, whatever its result. Where the process has moved to an arena that others have made, `enter`
/// gets each number with its object there (null: the number is the kernel's); all other numbers are the kernel's.
/// False: the process has no arena, as after leave_arena().
[[nodiscard]] bool end_change(RightsChange change, void (*enter)(int fd, socket::File* file));

}  // namespace bypass::runtime
