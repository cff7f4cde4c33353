// Writers for whose bytes there is no memory. As in Linux (sk_stream_wait_memory()), send() waits or says EAGAIN and
// poll() says nothing of room, until there is some; those who have bytes under way are woken by their acknowledgements,
// all others here, in the order in which they came.
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

/// A connection with an empty ring, once. It is told (kEventWritable) when there is memory.
void wait_for_memory(Core& core, Tcb& tcb);
/// It writes no more. Does nothing where it does not wait.
void stop_waiting(Core& core, Tcb& tcb);
/// As many as there is memory for.
void wake_for_memory(Env& env);

}  // namespace bypass::tcp
