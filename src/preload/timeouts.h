// libc's timeouts as Durations (negative: no limit), and how select writes back the remaining time.
#pragma once

#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "os/program_memory.h"
#include "stack/time.h"

namespace bypass::preload {

/// A timeout or a mask, copied into memory of our own; the caller's pointer then names the copy. False: it is not
/// mapped.
template <typename T>
class Taken {
 public:
  bool take(const T*& from) {
    if (from == nullptr) return true;
    if (!socket::copy_from_program(value_, from)) return false;
    from = &value_;
    return true;
  }

 private:
  T value_;
};

/// A signal mask as the kernel takes it: _NSIG / 8 bytes.
class Mask {
 public:
  explicit Mask(const sigset_t* mask) : given_(mask != nullptr) {
    if (!given_) return;
    sigemptyset(&set_);
    there_ = socket::copy_program_bytes(&set_, mask, _NSIG / 8);
  }
  explicit operator bool() const { return there_; }
  [[nodiscard]] const sigset_t* get() const { return given_ ? &set_ : nullptr; }

 private:
  bool given_, there_ = true;
  sigset_t set_;
};

inline constexpr Duration kForEver{-1};
// Longer times also count as no limit: 2^63 ns are 292 years.
inline constexpr std::int64_t kLongestSeconds = 1'000'000'000;

inline Duration from_milliseconds(int timeout) {
  return timeout < 0 ? kForEver : Duration(std::chrono::milliseconds(timeout));
}

inline bool is_valid(const timespec* timeout) {
  return timeout == nullptr || (timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 && timeout->tv_nsec < 1'000'000'000);
}

inline bool is_valid(const timeval* timeout) {
  return timeout == nullptr || (timeout->tv_sec >= 0 && timeout->tv_usec >= 0);
}

inline Duration from_timespec(const timespec* timeout) {
  if (timeout == nullptr || timeout->tv_sec > kLongestSeconds) return kForEver;
  return std::chrono::seconds(timeout->tv_sec) + Duration(timeout->tv_nsec);
}

inline Duration from_timeval(const timeval* timeout) {
  if (timeout == nullptr || timeout->tv_sec > kLongestSeconds || timeout->tv_usec / 1'000'000 > kLongestSeconds) {
    return kForEver;
  }
  return std::chrono::seconds(timeout->tv_sec) + std::chrono::microseconds(timeout->tv_usec);
}

/// When a timeout that begins now will have passed.
class Deadline {
 public:
  explicit Deadline(Duration timeout) : timeout_(timeout), end_(timeout > Duration{} ? now() + timeout : Duration{}) {}
  /// The remaining time, in the same form.
  [[nodiscard]] Duration left() const { return timeout_ > Duration{} ? std::max(end_ - now(), Duration{}) : timeout_; }

 private:
  static Duration now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return std::chrono::seconds(t.tv_sec) + Duration(t.tv_nsec);
  }
  Duration timeout_, end_;
};

/// Linux's select writes the remaining time to `timeout`, if that is writable.
class Remaining {
 public:
  Remaining(timeval* timeout, const timeval* taken) : timeout_(timeout), deadline_(from_timeval(taken)) {}
  void write_back(Duration timeout) const {
    if (timeout_ == nullptr || timeout == kForEver) return;
    const Duration left = deadline_.left();
    const timeval value{left / std::chrono::seconds(1),
                        static_cast<suseconds_t>(left % std::chrono::seconds(1) / std::chrono::microseconds(1))};
    (void)socket::copy_to_program(timeout_, value);
  }

 private:
  timeval* timeout_;
  Deadline deadline_;
};

}  // namespace bypass::preload
