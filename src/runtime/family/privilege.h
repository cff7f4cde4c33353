// Privilege: what a process does with the memory that it shares with others when it gives rights up.
//
// An arena is of processes that could do to each other by the kernel's leave what they can do by the memory
// (runtime/family/standing.h). A process that is about to have fewer rights than the others of its family leaves their
// arena before the kernel's call is made: it goes on with a copy of its own, at the same addresses, in which it is
// alone. What it shares with others over other memory goes back to the kernel before. Of a family on a port those of
// the same new rights share one copy, with a driver for the ports (spare.h, driver.h). docs/trust.md says what stays
// and what goes.
#pragma once

#include <cstdint>

#include "runtime/family/driver.h"
#include "runtime/family/standing.h"

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

/// One change of the process's rights, in these steps: begin_change(), and where `changes` is true give_back() for each
/// number of the process and leave_arena(), then the call, then end_change().
struct RightsChange {
  bool changes = false;     // there is something to do at all
  bool leaves = false;      // others of the family keep the rights
  bool progressed = false;  // the progress thread ran
  bool moves = false;       // to the arena of those who have given up the same, on a port
  bool founds = false;      // … as the first of them: it makes it
  Driver driver;            // … or one that has made a driver for it
  bool later = false;       // … which opens the ports when the process needs them
  int noted = -1;           // a socket that keeps a driver until the process is there, where it has no listener
  Standing then;            // what it will be
};
/// Before it, for each number of the process: a driver of those who have given up the same sees that the socket is
/// open.
void note_socket(const socket::File& file, int fd);
/// `pump_numbers` has each connection of the process's pumped (pump_process.h).
using PumpNumbers = void (*)();
[[nodiscard]] RightsChange begin_change(const Standing& then, PumpNumbers pump_numbers);
/// A number's object: what of it lies in memory that another process has, too, goes back to the kernel.
void give_back(socket::File& file, int fd, const RightsChange& change);
/// False: there is no memory for a copy. The arena is gone all the same, and all that lay there: every number is the
/// kernel's. Where the process `moves` it has no arena until end_change().
[[nodiscard]] bool leave_arena(RightsChange& change);
/// After the call, whatever it has answered. Where the process has moved to an arena that others have made, `enter` is
/// told of the objects there that its numbers name (null: the number is the kernel's); all other numbers are the
/// kernel's. False: it has no arena, as of leave_arena().
[[nodiscard]] bool end_change(RightsChange change, void (*enter)(int fd, socket::File* file));

}  // namespace bypass::runtime
