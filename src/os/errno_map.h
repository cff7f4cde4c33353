// The one place where errnos are made: the stack's causes and the socket layer's own, as the negative errno
// that the system call's caller gets.
#pragma once

#include <cstdint>

#include "stack/result.h"

namespace bypass::socket {

/// What a call can be refused for before the stack is asked.
enum class Refusal : std::uint8_t {
  kBadDescriptor,
  kExists,         // epoll: the descriptor is in the set already
  kNotThere,       // epoll: it is not
  kLoop,           // epoll: sets that contain each other, or too deep
  kNoOption,       // no such option at this level
  kOutOfRange,     // an option's value or a count
  kDomain,         // a time that is not valid
  kFamily,         // an address of another family
  kNoDestination,  // a datagram without an address on an unconnected socket
  kNotPermitted,
  kNoBuffers,
  kBadPointer,
  kNoSuchName,  // of a congestion control
};

/// `would_block` and friends are compared with what attempts return, so they have names.
[[nodiscard]] long failure(Error cause);
[[nodiscard]] long failure(Refusal cause);
/// The errno that a call into the kernel's table has just set.
[[nodiscard]] long kernel_failure();
/// -1 and errno (a Kernel member's convention) as ours.
[[nodiscard]] inline long kernel_result(long result) {
  return result >= 0 ? result : kernel_failure();
}

/// "Not now": what an attempt returns while there is nothing to do (-EAGAIN).
extern const long kAgain;
/// A wait ended with its time (never shown to the program as it is).
extern const long kTimedOutWait;
/// A signal handler ran (-EINTR).
extern const long kInterrupted;

/// The positive errno of a cause, as SO_ERROR reports it; 0 for kNone.
[[nodiscard]] int option_error(Error cause);

}  // namespace bypass::socket
