// The run directory: where processes meet, and leave what the bypass command reads. BYPASS_RUN_DIR, else
// /dev/shm/bypass-UID of the effective user; mode 0700.
//
// /dev/shm is everybody's: a directory of that name that is a link, somebody else's, or open to others is
// refused, and files in it are reached by its descriptor only. Where somebody else has the name, the user's is
// /run/user/UID/bypass, and where there is no /run/user/UID, /dev/shm/bypass-UID-DIGITS, whose digits nobody foresees:
// the kernel's word on its owner says which of such names is the user's (the first of them, in the order of names).
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace bypass::runtime {

/// `configured`, or the default of the effective user. A directory with digits behind is made here, as its name would
/// be another the next time.
std::string run_dir_path(std::string_view configured);
/// The first default: /dev/shm/bypass-UID.
std::string run_dir_path_of(uid_t user);
/// Those of all defaults that are the user's, for readers: what has moved may be in several.
std::vector<std::string> run_dirs_of(uid_t user);
/// Empty: the first default is the effective user's, or may become it. Otherwise whose it is.
std::string run_dir_problem();

/// A descriptor of the directory (O_DIRECTORY, CLOEXEC), made first when `create`. -1: `problem` is a complete
/// text; errno stays ENOENT when there simply is none. Root may open anybody's when it does not create.
int open_run_dir(const std::string& path, bool create, std::string& problem);
/// Sets errno where not.
bool may_write(int run_dir);

}  // namespace bypass::runtime
