#include "os/log/run_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "os/os.h"

namespace bypass::runtime {
namespace {

// Why the directory must not be used; empty: it may be used.
std::string distrust(int fd, bool create) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return strerrordesc_np(errno);
  const bool reading_root = !create && geteuid() == 0;
  if (status.st_uid != geteuid() && !reading_root)
    return "it belongs to the user " + std::to_string(status.st_uid) + ", not to " + std::to_string(geteuid());
  if ((status.st_mode & 0077) != 0) return "others may enter it; it must have mode 0700 (chmod 700)";
  return "";
}

constexpr const char* kShared = "/dev/shm";
constexpr std::size_t kDigits = 16;

/// The owner; nullopt: there is no such directory.
std::optional<uid_t> owner_of(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  return status.st_uid;
}

bool is_private_directory(const std::string& path, uid_t user) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == user &&
         (status.st_mode & 0077) == 0;
}

std::string session_dir_of(uid_t user) {
  return "/run/user/" + std::to_string(user);
}

/// Sorted by name.
std::vector<std::string> dirs_with_digits(uid_t user) {
  std::vector<std::string> found;
  DIR* const list = opendir(kShared);
  if (list == nullptr) return found;
  const std::string front = "bypass-" + std::to_string(user) + "-";
  while (const dirent* entry = readdir(list)) {
    const std::string_view name = entry->d_name;
    if (name.size() != front.size() + kDigits || !name.starts_with(front)) continue;
    if (std::string path = std::string(kShared) + "/" + entry->d_name; is_private_directory(path, user))
      found.push_back(std::move(path));
  }
  closedir(list);
  std::sort(found.begin(), found.end());
  return found;
}

/// An existing directory, otherwise a new one; empty: none can be made.
std::string dir_with_digits(uid_t user) {
  for (int tries = 0; tries < 2; tries++) {
    // After a directory was made, they are listed again: another process may have made one meanwhile.
    if (const auto found = dirs_with_digits(user); !found.empty()) return found.front();
    std::uint64_t number = 0;
    if (!os::fill_random(&number, sizeof number)) return "";
    char digits[kDigits + 1];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
    if (mkdir((run_dir_path_of(user) + "-" + digits).c_str(), 0700) != 0) return "";
  }
  return "";
}

}  // namespace

std::string run_dir_path_of(uid_t user) {
  std::string path(kShared);
  path += "/bypass-";
  return path += std::to_string(user);
}

std::string run_dir_problem() {
  const std::string usual = run_dir_path_of(geteuid());
  const auto owner = owner_of(usual);
  if (!owner || *owner == geteuid()) return "";
  return usual + " belongs to the user " + std::to_string(*owner);
}

std::string run_dir_path(std::string_view configured) {
  if (!configured.empty()) return std::string(configured);
  const uid_t user = geteuid();
  std::string usual = run_dir_path_of(user);
  if (run_dir_problem().empty()) return usual;
  if (const std::string session = session_dir_of(user); is_private_directory(session, user)) return session + "/bypass";
  std::string other = dir_with_digits(user);
  return other.empty() ? usual : other;
}

std::vector<std::string> run_dirs_of(uid_t user) {
  std::vector<std::string> found = dirs_with_digits(user);
  for (std::string& path : std::vector{run_dir_path_of(user), session_dir_of(user) + "/bypass"})
    if (owner_of(path) == user) found.push_back(std::move(path));
  return found;
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
