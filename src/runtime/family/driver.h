// The driver: processes of ours that serve a family whose members have not the rights that its ports take.
//
// The first process of the family that gives rights up makes it before (privilege.h). Of its processes the keeper keeps
// the rights, has no arena and waits; the server opens the ports, gives the rights up as the program did, maps the
// family's arena and owns the ports. When that one is killed, or the wire does not let it in again without the rights,
// the keeper makes another. A third, the heir, waits as the keeper does, for the lock that both of the others hold
// (spare.h): when neither is left, it is the keeper. The keeper makes another heir when that is killed.
//
// They end when the family has no other process and its listeners' sockets are closed everywhere: as long as a master
// has one, what comes in waits for the next worker. They are nobody's children, have none of the program's descriptors,
// and no signal but SIGKILL ends them.
#pragma once

#include <cstdint>

#include "runtime/family/standing.h"

namespace bypass::runtime {

struct Process;

struct Driver {
  int pair = -1;                        // the founder's end of a pair of sockets; -1: there is no driver
  std::uint32_t keeper = 0;             // the one that keeps the rights
  std::uint64_t keeper_start_time = 0;  // os::start_time_of, which may not see it once rights are given up
};

/// A process that may be about to execute another program, which takes the ports, has them opened when it needs them.
enum class Opens : std::uint8_t { kNow, kWhenCalled };

/// In a process of one thread, with rights: makes it and waits until the ports are open, or until it waits itself.
/// `then`: what it gives the rights up for. Without one `problem` says why.
Driver begin_driver(Process& process, const Standing& then, Opens opens, const char*& problem);
/// The arena is there: the driver serves it.
void let_drive(Driver& driver);
/// The arena is there: the driver serves it once it is called (spare.h). It ends with the last process that could.
void let_wait(Process& process, Driver& driver);
/// There is no arena for it: the driver ends. Nothing, where it has been told of one.
void drop_driver(Driver& driver);

}  // namespace bypass::runtime
