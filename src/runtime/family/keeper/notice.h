// Notice: how a process that wants a port learns that a keeper (keeper.h) has it for a moment, and asks for it.
//
// A program that was killed may be started again at once. The keeper has the port then for some milliseconds. It
// listens at an abstract Unix socket that is named after the port. A process that is about to open the port connects
// there, and waits until the keeper has ended. A keeper that is asked ends soon, whatever is still undelivered.
//
// Any user can take an abstract name. So both sides believe only the same user, or root (SO_PEERCRED, unix(7)).
#pragma once

#include "config/config.h"

namespace bypass::runtime {

/// Called in the keeper, before it opens the ports.
void give_notice(const Config& config);
/// Called in the keeper: whether a process waits for the ports. Some system calls.
[[nodiscard]] bool is_asked_for_ports();

/// Called in a process that is about to open the ports, or finds one in use: waits until no keeper has them, for two
/// seconds at most. Three system calls for each port where there is no keeper. Nothing in a process that has given
/// notice itself.
void await_keepers_end(const Config& config);

}  // namespace bypass::runtime
