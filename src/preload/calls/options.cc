// getsockopt, setsockopt, ioctl.
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>

#include "os/program_memory.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

// For an answer that the program's memory cannot take. The option is read anyway: its own error comes first.
int get_untold(const Use& use, int fd, int level, int name, socklen_t length) {
  std::byte value[256];
  length = std::min<socklen_t>(length, sizeof value);
  const long result = socket::get_option(*use, fd, level, name, value, &length);
  return static_cast<int>(use.finish(result < 0 ? result : -EFAULT));
}

BYPASS_EXPORT(int, getsockopt, (int fd, int level, int name, void* value, socklen_t* length)) {
  if (!is_tracked(fd)) [[likely]]
    return get_kernel_option(fd, level, name, value, length);
  Use use(fd);
  if (!use) return get_kernel_option(fd, level, name, value, length);
  socklen_t bytes = 0;
  if (!socket::copy_from_program(bytes, length)) return static_cast<int>(use.finish(-EFAULT));
  constexpr int kMostTouched = 4096;  // no option of ours is longer
  const int touched = std::clamp(static_cast<int>(bytes), 0, kMostTouched);
  if (!socket::is_writable(value, static_cast<std::size_t>(touched))) return get_untold(use, fd, level, name, bytes);
  const long result = socket::get_option(*use, fd, level, name, value, &bytes);
  if (result >= 0 && !socket::copy_to_program(length, bytes)) return static_cast<int>(use.finish(-EFAULT));
  return static_cast<int>(use.finish(result));
}

// A listener of the kernel passes its timeouts on to accepted sockets.
void note_kernel_option(int level, int name, const void* value, socklen_t length) {
  if (level != SOL_SOCKET || (name != SO_RCVTIMEO && name != SO_SNDTIMEO)) return;
  timeval time;
  if (fd_table.end() == 0 || length < sizeof time) return;
  if (socket::copy_from_program(time, static_cast<const timeval*>(value)) && time.tv_sec < 0)
    socket::note_timeout_below_zero();
}

BYPASS_EXPORT(int, setsockopt, (int fd, int level, int name, const void* value, socklen_t length)) {
  if (!is_tracked(fd)) [[likely]] {
    note_kernel_option(level, name, value, length);
    return set_kernel_option(fd, level, name, value, length);
  }
  Use use(fd);
  if (!use) return set_kernel_option(fd, level, name, value, length);
  // The kernel reports errors first: a wrong option, length or pointer.
  if (static_cast<int>(length) > 0 && !socket::is_readable(value, length))
    return real.setsockopt(fd, level, name, value, length);
  long result = socket::set_option(*use, fd, level, name, value, length);
  drop_if_decided(use, fd);  // only the kernel has this option
  return static_cast<int>(use.finish(result));
}

BYPASS_EXPORT(int, ioctl, (int fd, unsigned long request, void* argument)) {
  if (!is_tracked(fd)) [[likely]]
    return control_in_kernel(fd, request, argument);
  Use use(fd);
  if (!use) return control_in_kernel(fd, request, argument);
  std::optional<long> answer = socket::control(*use, fd, request, argument);
  return answer.has_value() ? static_cast<int>(use.finish(*answer)) : real.ioctl(fd, request, argument);
}

}  // namespace
}  // namespace bypass::preload
