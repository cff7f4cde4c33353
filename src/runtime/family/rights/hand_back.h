// Hand back: a driver gives the ports back to the family that keeps the rights, if no worker uses them.
//
// The first child of a master that gives rights up takes the master's listeners and the ports to another arena
// (privilege.h). A child that is only a helper never accepts: its master does, and gets no connection. So a process
// that keeps the rights and waits for its listener asks for the ports (spare::recall). If nobody of the driver's family
// has used a listener, the driver ends and does not open the ports again. Otherwise the workers keep them.
#pragma once

namespace bypass::runtime {

struct Process;

/// Called in a driver that serves: starts a thread that waits for such requests.
void hear_recalls(Process& process);
/// Whether somebody has asked, and the family has not used its listeners. If so, the family has nothing on the wire any
/// more: connections that were waiting have been reset.
[[nodiscard]] bool hand_back_if_recalled(Process& process);

}  // namespace bypass::runtime
