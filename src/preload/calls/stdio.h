// Streams over sockets of ours.
#pragma once

namespace bypass::preload {

/// To be called before the process releases its sockets: libc would write the streams' buffers after that.
void flush_streams();

}  // namespace bypass::preload
