// The run directory: where processes meet, and where they leave the files that the bypass command reads. It is
// BYPASS_RUN_DIR, or else /dev/shm/bypass-UID of the effective user; mode 0700.
//
// Everybody may write to /dev/shm. So a directory of that name is refused if it is a link, another user's, or open to
// others, and files in it are reached only by its descriptor. If another user has the name, /run/user/UID/bypass is
// used. If there is no /run/user/UID, it is /dev/shm/bypass-UID-DIGITS with digits that nobody can predict. Of several
// such names, the user's is the first one, in the order of names, that the kernel reports as owned by the user.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace bypass::runtime {

/// `configured`, or the default of the effective user. A directory with digits is made here, because the name would
/// differ the next time.
std::string run_dir_path(std::string_view configured);
/// The first default: /dev/shm/bypass-UID.
std::string run_dir_path_of(uid_t user);
/// All default directories that belong to the user, for readers: after a move, files may be in several.
std::vector<std::string> run_dirs_of(uid_t user);
/// Why the first default cannot be the effective user's: text that says whose it is. Empty: it is the user's, or may
/// become so.
std::string run_dir_problem();

/// A descriptor of the directory (O_DIRECTORY, CLOEXEC), which is made first if `create`. -1: `problem` is a complete
/// text, and errno stays ENOENT if the directory does not exist. Root may open any user's if it does not create.
int open_run_dir(const std::string& path, bool create, std::string& problem);
/// Whether this process may write to it; otherwise sets errno.
bool may_write(int run_dir);

}  // namespace bypass::runtime
