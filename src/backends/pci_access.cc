// Asks the kernel itself which process has a card, and what this process may have.
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "backends/pci_answers.h"
#include "os/own/cancellation.h"

namespace bypass {
namespace {

std::string command_of(const std::string& process) {
  const socket::CancellationOff off;
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
  if (descriptors == nullptr) return false;  // a process of another user
  bool found = false;
  while (const dirent* entry = found ? nullptr : readdir(descriptors)) {
    char target[PATH_MAX];
    const ssize_t length = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target);
    found = length > 0 && std::string_view(target, static_cast<std::size_t>(length)) == file;
  }
  closedir(descriptors);
  return found;
}

int open_for_real(const char* path, int flags) {
  return open(path, flags);
}

OpenFile open_file = open_for_real;

// The errno of opening the file; 0: the file can be opened.
int error_of_opening(const std::string& file) {
  const socket::CancellationOff off;
  const int fd = open_file(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

// capabilities(7)
bool has_capability(unsigned capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  return syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective & CAP_TO_MASK(capability)) != 0;
}

int ask_for_type1(int container) {
  return ioctl(container, VFIO_CHECK_EXTENSION, VFIO_TYPE1_IOMMU);
}

AskContainer ask_container = ask_for_type1;

// Whether DPDK's way to the IOMMU is there, as the kernel says. True if the kernel cannot be asked.
bool container_has_type1(const std::string& root) {
  const socket::CancellationOff off;
  const int fd = open_file((root + "/dev/vfio/vfio").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return true;
  const bool has = ask_container(fd) > 0;
  close(fd);
  return has;
}

// modprobe(8) loads the module behind vfio (a soft dependency), insmod and busybox do not. iommufd takes its place in
// kernels that were made so (CONFIG_IOMMUFD_VFIO_CONTAINER), which only the kernel itself can tell. A module that is
// built in has its folder, too.
bool lacks_iommu_module(const PciCard& card, const std::string& root) {
  const auto has = [&](const char* module) { return access((root + "/sys/module/" + module).c_str(), F_OK) == 0; };
  const bool by_vfio = card.uio.empty() && !card.is_without_iommu && has("vfio");
  if (!by_vfio || has("vfio_iommu_type1")) return false;
  return !has("iommufd") || !container_has_type1(root);
}

}  // namespace

bool may_see_physical_addresses() {
  return has_capability(CAP_SYS_ADMIN);
}

LockLimit lock_limit_of_process() {
  LockLimit limit;
  rlimit bytes{};
  if (getrlimit(RLIMIT_MEMLOCK, &bytes) == 0 && bytes.rlim_cur != RLIM_INFINITY) limit.bytes = bytes.rlim_cur;
  limit.is_exempt = has_capability(CAP_IPC_LOCK);
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

void set_open_file(OpenFile replacement) {
  open_file = replacement == nullptr ? open_for_real : replacement;
}

void set_ask_container(AskContainer replacement) {
  ask_container = replacement == nullptr ? ask_for_type1 : replacement;
}

std::string card_holder(const PciCard& card, const std::string& root) {
  const std::string file = device_file(card);
  if (file.empty() || has_open("self", root + file))
    return "";  // a port of this process has the card, or is about to close it
  if (card.uio.empty() && error_of_opening(root + file) != EBUSY) return "";
  std::string holder = other_holder(root + file);
  if (!card.uio.empty()) return holder;
  return holder.empty() ? "another process" : holder;
}

std::string access_problem(const PciCard& card, bool& busy, const std::string& root) {
  const std::string file = device_file(card);
  if (file.empty()) return "";
  const std::string holder = card_holder(card, root);
  busy = !holder.empty();
  if (busy) return holder + " has the card (" + file + "); accepted is another card, or that process ended";
  const int error = error_of_opening(root + file);
  if ((error == 0 || error == EBUSY) && lacks_iommu_module(card, root))
    return "the kernel's module vfio_iommu_type1 is not loaded, by which vfio-pci reaches the IOMMU; this loads it, as "
           "root: modprobe vfio_iommu_type1";
  if (error == 0 || error == EBUSY) return "";
  if (error == ENOENT && card.uio.empty())
    return file + " is not there; a container needs it and /dev/vfio/vfio (docker run --device " + file +
           " --device /dev/vfio/vfio)";
  if (error == ENOENT) return file + " is not there; a container needs it (docker run --device " + file + ")";
  return file + ": " + strerrordesc_np(error) +
         (error == EACCES || error == EPERM ? "; as root: chown USER " + file + ", until the next boot" : "");
}

}  // namespace bypass
