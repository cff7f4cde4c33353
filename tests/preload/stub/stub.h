// What the stand-ins for src/socket and src/runtime share.
#pragma once

namespace bypass::preload_stub {

void own(int fd, bool add);
int live_objects();

}  // namespace bypass::preload_stub
