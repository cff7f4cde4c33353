// What receiving and sending on a connection within the host have in common: where a call waits, and how the part of a
// buffer is told that is left.
#pragma once

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>

#include "os/os.h"
#include "socket/shared/local_path.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

/// Of an attempt: the path has changed, begin again.
inline constexpr long kChanged = -1'000'000;

/// A call that may wait in the kernel, where nobody but a signal reaches it. Goes with it, also on cancellation.
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

/// The part of `data` behind its first `done` bytes, at most `most` of them.
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
  /// Of one question to the kernel: what is beyond waits for the next.
  static constexpr std::size_t kMost = 16;

  std::array<iovec, kMost> parts_;
  std::size_t count_ = 0;
};

[[nodiscard]] inline bool kernel_has_news(const Socket& socket) {
  return has_news(kernel_half_state(socket));
}

/// SIOCATMARK: what the kernel would read next is behind urgent data.
[[nodiscard]] inline bool kernel_is_at_mark(int number) {
  int at = 0;
  return os::call(SYS_ioctl, number, SIOCATMARK, os::address(&at)) == 0 && at != 0;
}

/// What both directions have in common: no wire is needed before there is memory to look at.
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
