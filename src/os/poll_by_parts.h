// ppoll() of sets that the process may not have: the kernel refuses more items than RLIMIT_NOFILE (EINVAL, poll(2)),
// and a sandbox may set it to 1 or 0 with descriptors open. Any thread; no cancellation point.
#pragma once

#include <poll.h>
#include <time.h>

#include <span>

namespace bypass::socket {

/// After a ppoll() of these that failed: looks at them in parts that are short enough. 0 may come early, after 10 ms at
/// most (`limit` may be less, null is no limit); so may what the items behind the first part have to say come late.
/// -1 after as long a sleep: nothing may be asked; errno is EINTR or EINVAL.
[[gnu::cold]] int poll_by_parts(std::span<pollfd> set, const timespec* limit);

}  // namespace bypass::socket
