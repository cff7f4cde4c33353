// Files of a device that programs look at beside libibverbs. A software device has none, so libc's calls answer for
// them: UCX asks stat() and access() of /dev/infiniband/soft0 before it uses soft0, and reads each GID's type in /sys.
#pragma once

#include <optional>

namespace bypass::softverbs {

/// open(2) of /sys/class/infiniband/softN/ports/1/gid_attrs/types/M (Documentation/ABI/stable/sysfs-class-infiniband):
/// "RoCE v2", as each GID of a software device is. The result is a descriptor, or -1 with errno set (EACCES: it was to
/// be written). No value: the path is no such file.
[[nodiscard]] std::optional<int> open_attribute(const char* path, int flags);

}  // namespace bypass::softverbs
