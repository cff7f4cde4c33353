// Writers for whose bytes there is no memory. As in Linux (sk_stream_wait_memory()), send() waits or returns EAGAIN,
// and poll() reports no room, until there is memory. Writers with bytes under way are woken by their acknowledgements.
// All others are woken here, in the order in which they came.
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

/// Adds a connection with an empty ring, once. It gets kEventWritable when there is memory.
void wait_for_memory(Core& core, Tcb& tcb);
/// The connection writes no more. Does nothing if it does not wait.
void stop_waiting(Core& core, Tcb& tcb);
/// Wakes as many as there is memory for.
void wake_for_memory(Env& env);

}  // namespace bypass::tcp
