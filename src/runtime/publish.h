// Publishing: copies counters, ports and sockets to the stats region. The progress thread does it once a
// tick, so that the data path never does.
#pragma once

#include <vector>

namespace bypass::runtime {

struct Process;

/// `process` is a Process.
void publish(void* process);

/// `slots`: those of the region that sockets were written to the last time.
void publish_sockets(Process& p, std::vector<int>& slots);

}  // namespace bypass::runtime
