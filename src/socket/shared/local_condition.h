// What receiving and sending on a connection within the host share: where a call waits, and how the remaining part of a
// buffer is passed on.
// Tests: tests/system/local_waits.py.
#pragma once

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>

#include "os/os.h"
#include "socket/shared/local_path.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

/// An attempt's result: the path has changed, begin again.
inline constexpr long kChanged = -1'000'000;

/// Counts a call that may wait in the kernel, where only a signal reaches it. The count ends with this object, also on
/// cancellation.
class InKernel {
 public:
  /// Lock held.
  explicit InKernel(std::uint16_t& count) : count_(count) { count_++; }
  ~InKernel() {
    const Guard guard(shard());
    count_--;
  }
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;

 private:
  std::uint16_t& count_;
};

/// The part of `data` after its first `done` bytes, at most `most` of them.
class Rest {
 public:
  Rest(std::span<const iovec> data, std::size_t done, std::size_t most) {
    for (const iovec& v : data) {
      if (done >= v.iov_len) {
        done -= v.iov_len;
        continue;
      }
      const std::size_t n = std::min(v.iov_len - done, most);
      if (n == 0 || count_ == parts_.size()) break;
      parts_[count_++] = {static_cast<std::byte*>(v.iov_base) + done, n};
      most -= n;
      done = 0;
    }
  }
  [[nodiscard]] std::span<const iovec> parts() const { return {parts_.data(), count_}; }

 private:
  /// Buffers in one request to the kernel: the others wait for the next request.
  static constexpr std::size_t kMost = 16;

  std::array<iovec, kMost> parts_;
  std::size_t count_ = 0;
};

[[nodiscard]] inline bool kernel_has_news(const Socket& socket) {
  return has_news(kernel_half_state(socket));
}

/// SIOCATMARK: the kernel's next byte comes after urgent data.
[[nodiscard]] inline bool kernel_is_at_mark(int number) {
  int at = 0;
  return os::call(SYS_ioctl, number, SIOCATMARK, os::address(&at)) == 0 && at != 0;
}

/// What both directions share: no wire is needed while there is no memory to look at.
class LocalCondition : public DualCondition {
 public:
  using DualCondition::DualCondition;
  [[nodiscard]] bool needs_wire() const final { return end_of(socket_).stage == LocalEnd::Stage::kPaired; }

 protected:
  ~LocalCondition() = default;
  [[nodiscard]] LocalEnd& end() const { return end_of(socket_); }
  [[nodiscard]] bool kernel_has_news() const { return socket::kernel_has_news(socket_); }
};

}  // namespace bypass::socket
