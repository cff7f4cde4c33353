// Publishing: copies counters, ports and sockets to the stats region. The progress thread does it once a
// tick, so that the data path never does.
#pragma once

#include <vector>

#include "stack/time.h"

namespace bypass::runtime {

struct Process;

/// `process` is a Process. What is not shown yet is to be shown so much later; kNever's distance: all is.
Duration publish(void* process);

/// `slots`: those of the region that sockets were written to the last time. False: not now, the lock is taken.
bool publish_sockets(Process& p, std::vector<int>& slots);

}  // namespace bypass::runtime
