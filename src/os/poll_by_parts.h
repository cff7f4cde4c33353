// ppoll() for sets that are too large for the process. The kernel refuses more items than RLIMIT_NOFILE (EINVAL,
// poll(2)), and a sandbox may set it to 1 or 0 with descriptors open. Any thread may call it; no cancellation point.
#pragma once

#include <poll.h>
#include <time.h>

#include <span>

namespace bypass::socket {

/// To be called after a failed ppoll() with these items: polls them in parts that are short enough. It may return 0
/// early, after at most 10 ms (`limit` may be less; null: no limit). Events of items after the first part may be found
/// late. -1 after as long a sleep: no item may be polled; errno is EINTR or EINVAL.
[[gnu::cold]] int poll_by_parts(std::span<pollfd> set, const timespec* limit);

}  // namespace bypass::socket
