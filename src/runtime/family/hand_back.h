// Hand back: a driver gives the ports back to the family that keeps the rights, where no worker uses them.
//
// The first child of a master that gives rights up takes the master's listeners to another arena, and the ports
// (privilege.h). A child that is no worker, but a helper, never accepts: its master does, and has no connection. So a
// process that keeps the rights and waits for its listener asks for the ports (spare::recall). Where nobody of the
// driver's family has used a listener, that one ends, and opens the ports no more. Else the workers have them.
#pragma once

namespace bypass::runtime {

struct Process;

/// In a driver that serves: makes a thread that hears who asks.
void hear_recalls(Process& process);
/// Whether somebody has asked, and the family has not used its listeners. It has nothing on the wire then: connections
/// that wait have been reset.
[[nodiscard]] bool hand_back_if_recalled(Process& process);

}  // namespace bypass::runtime
