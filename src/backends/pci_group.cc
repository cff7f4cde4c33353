// Who has a card's IOMMU group, and what this process may have: the questions that are put to the kernel itself.
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "backends/pci_answers.h"

namespace bypass {
namespace {

std::string command_of(const std::string& process) {
  char name[32] = {};
  const int fd = open(("/proc/" + process + "/comm").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "?";
  const ssize_t got = read(fd, name, sizeof name - 1);
  close(fd);
  return got <= 0 ? "?" : std::string(name, strcspn(name, "\n"));
}

bool has_open(const std::string& process, const std::string& file) {
  const std::string folder = "/proc/" + process + "/fd";
  DIR* const descriptors = opendir(folder.c_str());
  if (descriptors == nullptr) return false;  // another user's
  bool found = false;
  while (const dirent* entry = found ? nullptr : readdir(descriptors)) {
    char target[PATH_MAX];
    const ssize_t length = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target);
    found = length > 0 && std::string_view(target, static_cast<std::size_t>(length)) == file;
  }
  closedir(descriptors);
  return found;
}

std::string busy_text(const std::string& file) {
  if (has_open("self", file)) return "";  // a port of this process's, which is about to close or has another card
  const std::string holder = other_holder(file);
  return (holder.empty() ? "another process" : holder) + " has the card (" + file +
         "); accepted is another card, or that process ended";
}

}  // namespace

LockLimit lock_limit_of_process() {
  LockLimit limit;
  rlimit bytes{};
  if (getrlimit(RLIMIT_MEMLOCK, &bytes) == 0 && bytes.rlim_cur != RLIM_INFINITY) limit.bytes = bytes.rlim_cur;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  limit.is_exempt = syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
  return limit;
}

std::string other_holder(const std::string& file) {
  DIR* const processes = opendir("/proc");
  if (processes == nullptr) return "";
  const std::string self = std::to_string(getpid());
  std::string found;
  while (const dirent* entry = found.empty() ? readdir(processes) : nullptr) {
    const std::string process = entry->d_name;
    if (process.find_first_not_of("0123456789") != std::string::npos || process == self) continue;
    if (has_open(process, file)) found = "the process " + process + " (" + command_of(process) + ")";
  }
  closedir(processes);
  return found;
}

std::string group_problem(const PciCard& card, bool& busy, int (*open_file)(const char* path, int flags)) {
  const std::string file = card.driver == "vfio-pci" ? vfio_file(card) : "";
  if (file.empty()) return "";
  const int flags = O_RDWR | O_CLOEXEC;
  const int fd = open_file != nullptr ? open_file(file.c_str(), flags) : open(file.c_str(), flags);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (fd >= 0) return "";
  if (error == EBUSY) {
    std::string problem = busy_text(file);
    busy = !problem.empty();
    return problem;
  }
  if (error == ENOENT)
    return file + " is not there; a container needs it and /dev/vfio/vfio (docker run --device " + file +
           " --device /dev/vfio/vfio)";
  return file + ": " + strerrordesc_np(error) +
         (error == EACCES || error == EPERM ? "; as root: chown USER " + file + ", until the next boot" : "");
}

}  // namespace bypass
