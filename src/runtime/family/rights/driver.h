// The driver: processes of ours that serve a family whose members lack the rights that its ports need.
//
// The first process of the family that gives rights up makes the driver before that (privilege.h). The driver has three
// processes. The keeper keeps the rights, has no arena, and waits. The server opens the ports, gives the rights up as
// the program did, maps the family's arena and owns the ports. If the server is killed, or needs the rights to get its
// wire again, the keeper makes another server. The third one, the heir, waits for the lock that keeper and server both
// hold (spare.h). When neither is left, the heir becomes the keeper. The keeper makes another heir when the heir is
// killed.
//
// They end when the family has no other process and its listeners' sockets are closed everywhere. While a master still
// has such a socket, new connections and datagrams wait for the next worker. The processes of a driver are children of
// init. They have none of the program's descriptors, and only SIGKILL ends them.
#pragma once

#include <cstdint>

#include "runtime/family/standing.h"

namespace bypass::runtime {

struct Process;

struct Driver {
  int pair = -1;                        // the founder's end of a pair of sockets; -1: there is no driver
  std::uint32_t keeper = 0;             // the process that keeps the rights
  std::uint64_t keeper_start_time = 0;  // os::start_time_of(), which may not see the keeper once rights are given up
};

/// When the driver opens the ports. kWhenCalled: for a process that may be about to execute another program. The driver
/// takes the ports, and opens them when that program needs them.
enum class Opens : std::uint8_t { kNow, kWhenCalled };

/// Called in a process of one thread that has the rights. Makes the driver and waits until its ports are open, or until
/// it waits itself. `then`: the rights that the process will have. If there is no driver, `problem` says why.
Driver begin_driver(Process& process, const Standing& then, Opens opens, const char*& problem);
/// Tells the driver that the arena is there: it serves the arena.
void let_drive(Driver& driver);
/// Tells the driver that the arena is there: it serves the arena once it is called (spare.h). It ends with the last
/// process that could call it.
void let_wait(Process& process, Driver& driver);
/// There is no arena for the driver: it ends. Does nothing if the driver has been told of an arena.
void drop_driver(Driver& driver);

}  // namespace bypass::runtime
