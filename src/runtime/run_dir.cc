#include "runtime/run_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace bypass::runtime {
namespace {

// Empty: the directory may be used.
std::string distrust(int fd, bool create) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return strerrordesc_np(errno);
  const bool reading_root = !create && geteuid() == 0;
  if (status.st_uid != geteuid() && !reading_root)
    return "it belongs to the user " + std::to_string(status.st_uid) + ", not to " + std::to_string(geteuid());
  if ((status.st_mode & 0077) != 0) return "others may enter it; it must have mode 0700 (chmod 700)";
  return "";
}

}  // namespace

std::string run_dir_path_of(uid_t user) {
  return "/dev/shm/bypass-" + std::to_string(user);
}

std::string run_dir_path(std::string_view configured) {
  return configured.empty() ? run_dir_path_of(geteuid()) : std::string(configured);
}

int open_run_dir(const std::string& path, bool create, std::string& problem) {
  if (create && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    problem = "run directory " + path + ": cannot be made: " + strerrordesc_np(errno);
    return -1;
  }
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    const bool no_directory = error == ELOOP || error == ENOTDIR;
    problem = "run directory " + path + ": " + (no_directory ? "is no directory" : strerrordesc_np(error));
    errno = error;
    return -1;
  }
  const std::string why = distrust(fd, create);
  if (why.empty()) return fd;
  problem = "run directory " + path + ": not used: " + why;
  close(fd);
  errno = EPERM;
  return -1;
}

bool may_write(int run_dir) {
  return faccessat(run_dir, ".", W_OK | X_OK, AT_EACCESS) == 0;
}

}  // namespace bypass::runtime
