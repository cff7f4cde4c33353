// Publishing: copies counters, ports and sockets to the stats region. The progress thread does it once a tick, so that
// the data path never has to.
#pragma once

#include <vector>

#include "stack/time.h"

namespace bypass::runtime {

struct Process;

/// `process` is a Process. Returns after how long what is not shown yet is to be shown. kNever's distance: everything
/// is shown.
Duration publish(void* process);
/// Publishes what nobody will publish later: the progress thread is about to end.
void publish_a_last_time(Process& p);

/// `slots`: the region's slots that sockets were written to the last time. False: not now, another thread holds the
/// lock.
bool publish_sockets(Process& p, std::vector<int>& slots);

}  // namespace bypass::runtime
