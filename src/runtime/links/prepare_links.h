// Links to accelerated peers, over RDMA and over shared memory: whether this process may have any.
#pragma once

#include "stack/memory/memory.h"
#include "stack/stack.h"

namespace bypass::fastpath {
struct PeerTable;
}

namespace bypass::runtime {

struct Process;

/// Called before any connection is made: each connection is asked whether it may be framed. `table`: the links of the
/// image before this one, if it had any.
void prepare_links(Process& p, Stack& stack, Memory& memory, fastpath::PeerTable* table = nullptr);

}  // namespace bypass::runtime
