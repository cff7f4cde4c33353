#include "softverbs/abi/device_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "os/os.h"
#include "softverbs/abi/adapter/setup.h"

namespace bypass::softverbs {
namespace {

using Access = int (*)(const char*, int);
using AccessAt = int (*)(int, const char*, int, int);
using StatByPath = int (*)(const char*, struct stat*);

struct NextCalls {
  Access access = reinterpret_cast<Access>(dlsym(RTLD_NEXT, "access"));
  Access eaccess = reinterpret_cast<Access>(dlsym(RTLD_NEXT, "eaccess"));
  AccessAt faccessat = reinterpret_cast<AccessAt>(dlsym(RTLD_NEXT, "faccessat"));
  StatByPath stat = reinterpret_cast<StatByPath>(dlsym(RTLD_NEXT, "stat"));
  StatByPath stat64 = reinterpret_cast<StatByPath>(dlsym(RTLD_NEXT, "stat64"));
};

const NextCalls& next_calls() {
  static const NextCalls calls;
  return calls;
}

// Looked up before the program runs: a signal handler may be the first to call.
[[gnu::constructor]] void look_calls_up() {
  next_calls();
}

/// Takes `prefix` and a number off the front of a path.
bool take(std::string_view& path, std::string_view prefix, std::size_t& number) {
  if (!path.starts_with(prefix)) return false;
  path.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(path.begin(), path.end(), number);
  if (error != std::errc{}) return false;
  path.remove_prefix(static_cast<std::size_t>(end - path.begin()));
  return true;
}

bool is_device(std::size_t index) {
  return !is_hosted() && setup().ok() && index < setup().soft.size();
}

/// "/dev/infiniband/soft0", where there is a soft0: ibv_device::dev_name is the device's name.
bool is_device_file(const char* path) {
  if (path == nullptr) return false;
  std::string_view rest(path);
  std::size_t index = 0;
  return take(rest, "/dev/infiniband/soft", index) && rest.empty() && is_device(index);
}

/// A software device is nothing that can be executed.
int answer(int mode) {
  if ((mode & X_OK) == 0) return 0;
  errno = EACCES;
  return -1;
}

int describe_device(struct stat* out) {
  *out = {};
  out->st_mode = S_IFCHR | 0666;
  out->st_nlink = 1;
  return 0;
}

/// A file of a kernel's table may be written by nobody, and has at most as many entries.
constexpr std::size_t kMostGids = 256;

int open_text(std::string_view text, int flags) {
  if ((flags & O_ACCMODE) != O_RDONLY) {
    errno = EACCES;
    return -1;
  }
  const int fd = ::memfd_create("bypass-attribute", (flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0U);
  if (fd < 0) return -1;
  const auto bytes = static_cast<long>(text.size());
  if (os::call(SYS_pwrite64, fd, os::address(text.data()), bytes, 0) == bytes) return fd;
  os::close(fd);
  errno = EIO;
  return -1;
}

}  // namespace

std::optional<int> open_attribute(const char* path, int flags) {
  if (path == nullptr) return std::nullopt;
  std::string_view rest(path);
  std::size_t device = 0, port = 0, gid = 0;
  if (!take(rest, "/sys/class/infiniband/soft", device) || !take(rest, "/ports/", port)) return std::nullopt;
  if (!take(rest, "/gid_attrs/types/", gid) || !rest.empty() || !is_device(device)) return std::nullopt;
  if (port != 1 || gid >= kMostGids) return std::nullopt;  // the kernel says that there is no such file
  return open_text("RoCE v2\n", flags);
}

extern "C" {

int access(const char* path, int mode) noexcept {
  return is_device_file(path) ? answer(mode) : next_calls().access(path, mode);
}

int eaccess(const char* path, int mode) noexcept {
  return is_device_file(path) ? answer(mode) : next_calls().eaccess(path, mode);
}

int euidaccess(const char* path, int mode) noexcept {
  return eaccess(path, mode);
}

int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  return is_device_file(path) ? answer(mode) : next_calls().faccessat(folder, path, mode, flags);
}

int stat(const char* path, struct stat* out) noexcept {
  return is_device_file(path) ? describe_device(out) : next_calls().stat(path, out);
}

int stat64(const char* path, struct stat64* out) noexcept {
  static_assert(sizeof(struct stat64) == sizeof(struct stat));
  auto* const as_stat = reinterpret_cast<struct stat*>(out);
  return is_device_file(path) ? describe_device(as_stat) : next_calls().stat64(path, as_stat);
}

}  // extern "C"

}  // namespace bypass::softverbs
