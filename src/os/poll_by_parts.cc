#include "os/poll_by_parts.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "os/os.h"

namespace bypass::socket {

namespace {

constexpr long kMostWait = 10'000'000;  // ns

/// How many items one call may have; 0 also if a filter does not let us ask.
std::size_t longest_part() {
  rlimit numbers{};
  os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, os::address(&numbers));
  return numbers.rlim_cur;
}

long look_at(std::span<pollfd> part, const timespec& time) {
  return os::call(SYS_ppoll, os::address(part.data()), static_cast<long>(part.size()), os::address(&time), 0, 8);
}

}  // namespace

int poll_by_parts(std::span<pollfd> set, const timespec* limit) {
  for (pollfd& item : set) item.revents = 0;
  timespec time{0, kMostWait};
  if (limit != nullptr && limit->tv_sec == 0) time.tv_nsec = std::min(limit->tv_nsec, kMostWait);
  const std::size_t most = std::min(longest_part(), set.size());
  long ready = 0;
  for (std::size_t at = most; most != 0 && at < set.size(); at += most)
    ready += std::max(0L, look_at(set.subspan(at, std::min(most, set.size() - at)), {}));
  if (ready > 0) time = {};
  const long first = most == 0 ? -EINVAL : look_at(set.first(most), time);
  if (first >= 0) return static_cast<int>(ready + first);
  if (first != -EINTR) os::call(SYS_nanosleep, os::address(&time), 0);
  if (ready > 0) return static_cast<int>(ready);
  errno = first == -EINTR ? EINTR : EINVAL;
  return -1;
}

}  // namespace bypass::socket
