// getsockopt, setsockopt, ioctl.
#include <sys/socket.h>

#include "preload/numbers.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

BYPASS_EXPORT(int, getsockopt, (int fd, int level, int name, void* value, socklen_t* length)) {
  if (!is_tracked(fd)) [[likely]]
    return real.getsockopt(fd, level, name, value, length);
  Use use(fd);
  if (!use) return real.getsockopt(fd, level, name, value, length);
  return static_cast<int>(use.finish(socket::get_option(*use, fd, level, name, value, length)));
}

BYPASS_EXPORT(int, setsockopt, (int fd, int level, int name, const void* value, socklen_t length)) {
  if (!is_tracked(fd)) [[likely]]
    return real.setsockopt(fd, level, name, value, length);
  Use use(fd);
  if (!use) return real.setsockopt(fd, level, name, value, length);
  long result = socket::set_option(*use, fd, level, name, value, length);
  drop_if_decided(use, fd);  // an option that only the kernel has
  return static_cast<int>(use.finish(result));
}

BYPASS_EXPORT(int, ioctl, (int fd, unsigned long request, void* argument)) {
  if (!is_tracked(fd)) [[likely]]
    return real.ioctl(fd, request, argument);
  Use use(fd);
  if (!use) return real.ioctl(fd, request, argument);
  std::optional<long> answer = socket::control(*use, fd, request, argument);
  return answer.has_value() ? static_cast<int>(use.finish(*answer)) : real.ioctl(fd, request, argument);
}

}  // namespace
}  // namespace bypass::preload
