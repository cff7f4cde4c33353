// What the parts of PortSet share: their locks, and the word that the ports have opened or gone. Private to
// src/runtime/ports.
#pragma once

#include <pthread.h>

#include "socket/family/wires.h"

namespace bypass::runtime {

/// Private to the process. The thread that opens the ports holds it; other callers wait for the result.
extern pthread_mutex_t g_opening;
/// Held by the thread that reads the kernel's network; taken last.
extern pthread_mutex_t g_looking;

/// Wakes the processes of the family that wait for the ports.
void tell_openings(socket::Wires& wires);

}  // namespace bypass::runtime
