// The libc calls that librdmacm.so.1 makes about /dev/infiniband/rdma_cm, and open() of a device's attributes
// (device_file.h). All others go on to the next library's
// function (libbypass.so's, if it is loaded as well, or libc's).
//
// Without a software device nothing is different: then the real /dev/infiniband/rdma_cm is opened. With one, the
// process's connections are managed here, and a card's cannot be.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <optional>

#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/cm/channel_table.h"
#include "softverbs/abi/cm/service.h"
#include "softverbs/abi/device_file.h"

namespace bypass::softverbs {
namespace {

constexpr const char* kDevice = "/dev/infiniband/rdma_cm";

using Open = int (*)(const char*, int, ...);
using Write = ssize_t (*)(int, const void*, std::size_t);
using Close = int (*)(int);
using Stat = int (*)(int, struct stat*);

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

struct Next {
  Open open = next<Open>("open"), open64 = next<Open>("open64");
  Write write = next<Write>("write");
  Close close = next<Close>("close");
  Stat fstat = next<Stat>("fstat"), fstat64 = next<Stat>("fstat64");
};

const Next& real_calls() {
  static const Next calls;
  return calls;
}

// Looked up before the program runs: a signal handler may call write() first.
[[gnu::constructor]] void look_up() {
  real_calls();
}

bool is_ours(const char* path) {
  return path != nullptr && std::strcmp(path, kDevice) == 0 && !is_hosted() && setup().ok() && !setup().soft.empty();
}

int open_device() {
  Service* const service = Service::get();
  if (service != nullptr) return service->open_channel();
  errno = ENODEV;
  return -1;
}

// What librdmacm looks at: that it is a character device, and the number of a kernel's if there is one.
int describe(int fd, struct stat* out, Stat real) {
  if (const int result = real(fd, out); result != 0) return result;
  struct stat device {};
  const int error = errno;
  const bool there = stat(kDevice, &device) == 0 && S_ISCHR(device.st_mode);
  errno = error;
  out->st_mode = S_IFCHR | 0666;
  out->st_rdev = there ? device.st_rdev : 0;
  return 0;
}

mode_t mode_of(va_list arguments) {
  return va_arg(arguments, mode_t);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  if (is_ours(path)) return open_device();
  if (const std::optional<int> attribute = open_attribute(path, flags)) return *attribute;
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(arguments);
  va_end(arguments);
  return real_calls().open(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  if (is_ours(path)) return open_device();
  if (const std::optional<int> attribute = open_attribute(path, flags)) return *attribute;
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(arguments);
  va_end(arguments);
  return real_calls().open64(path, flags, mode);
}

ssize_t write(int fd, const void* data, std::size_t bytes) {
  if (!ChannelTable::has(fd)) return real_calls().write(fd, data, bytes);
  Service* const service = Service::existing();
  const long result = service == nullptr ? -EIO : service->command(fd, data, bytes);
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

int close(int fd) {
  if (ChannelTable::has(fd)) {
    Service* const service = Service::existing();
    if (service == nullptr || !service->close_channel(fd)) ChannelTable::remove(fd);
  }
  return real_calls().close(fd);
}

int fstat(int fd, struct stat* out) noexcept {
  if (!ChannelTable::has(fd)) return real_calls().fstat(fd, out);
  return describe(fd, out, real_calls().fstat);
}

int fstat64(int fd, struct stat64* out) noexcept {
  static_assert(sizeof(struct stat64) == sizeof(struct stat));
  auto* const as_stat = reinterpret_cast<struct stat*>(out);
  if (!ChannelTable::has(fd)) return real_calls().fstat64(fd, as_stat);
  return describe(fd, as_stat, real_calls().fstat64);
}

}  // extern "C"

}  // namespace bypass::softverbs
