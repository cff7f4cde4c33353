// Result<T>: a value, or the cause why there is no value. No exception, no allocation, [[nodiscard]].
//
// Causes are what went wrong, not errnos: the one table that turns a cause into an errno is
// src/os/errno_map.cc. A dropped segment is not an error but a counted reason (counters.h).
#pragma once

#include <cstdint>
#include <utility>

namespace bypass {

enum class Error : std::uint8_t {
  kNone = 0,
  kWouldBlock,  // nothing to do now; a blocking caller waits
  kInProgress,  // a connect has been started
  kAlready,     // a connect is under way already
  kIsConnected,
  kNotConnected,
  kInvalid,  // an argument the call cannot take
  kAddressInUse,
  kAddressNotAvailable,
  kNoRoute,          // no port routes to the address
  kHostUnreachable,  // ICMP or an unanswered ARP
  kNetUnreachable,
  kRefused,          // RST to our SYN, or ICMP port unreachable
  kReset,            // RST on an established connection
  kAborted,          // aborted here, before accept
  kTimedOut,         // retransmissions or keep-alives unanswered
  kBrokenPipe,       // our direction is shut down
  kMessageTooLarge,  // a datagram that no frame (or no fragmentation) can carry
  kNoMemory,         // the arena's or the port's budget is used up
  kNotSupported,
  kInterrupted,
  kFault,
  kAccess,
  kProtocol,
};

template <typename T>
class [[nodiscard]] Result {
 public:
  constexpr Result(T value) : value_(std::move(value)), error_(Error::kNone) {}  // NOLINT: implicit by design
  constexpr Result(Error error) : value_{}, error_(error) {}                     // NOLINT: implicit by design

  [[nodiscard]] constexpr bool ok() const { return error_ == Error::kNone; }
  constexpr explicit operator bool() const { return ok(); }
  [[nodiscard]] constexpr Error error() const { return error_; }
  [[nodiscard]] constexpr T& value() { return value_; }
  [[nodiscard]] constexpr const T& value() const { return value_; }
  constexpr T& operator*() { return value_; }
  constexpr const T& operator*() const { return value_; }
  constexpr T* operator->() { return &value_; }
  constexpr const T* operator->() const { return &value_; }

 private:
  T value_;
  Error error_;
};

}  // namespace bypass
