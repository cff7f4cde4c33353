// Streams over sockets of ours.
#pragma once

namespace bypass::preload {

/// Before the process lets go of its sockets: libc would write the streams' buffers after that.
void flush_streams();

}  // namespace bypass::preload
