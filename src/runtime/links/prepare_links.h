// Links to accelerated peers, over RDMA and over shared memory: whether this process may have any.
#pragma once

#include "stack/memory/memory.h"
#include "stack/stack.h"

namespace bypass::runtime {

struct Process;

/// Called before any connection is made: each connection is asked whether it may be framed.
void prepare_links(Process& p, Stack& stack, Memory& memory);

}  // namespace bypass::runtime
