// The run directory: where processes leave what the bypass command reads. BYPASS_RUN_DIR, else
// /dev/shm/bypass-UID of the effective user; mode 0700.
//
// /dev/shm is everybody's: a directory of that name that is a link, somebody else's, or open to others is
// refused, and files in it are reached by its descriptor only.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace bypass::runtime {

std::string run_dir_path(std::string_view configured);
std::string run_dir_path_of(uid_t user);

/// A descriptor of the directory (O_DIRECTORY, CLOEXEC), made first when `create`. -1: `problem` is a complete
/// text; errno stays ENOENT when there simply is none. Root may open anybody's when it does not create.
int open_run_dir(const std::string& path, bool create, std::string& problem);
/// Sets errno where not.
bool may_write(int run_dir);

}  // namespace bypass::runtime
