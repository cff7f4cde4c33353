// The only place that makes errnos: the causes of the stack and of the socket layer become the negative errno that the
// caller of the system call gets.
#pragma once

#include <cstdint>

#include "stack/result.h"

namespace bypass::socket {

/// Why a call is refused before the stack is asked.
enum class Refusal : std::uint8_t {
  kBadDescriptor,
  kExists,         // epoll: the descriptor is in the set already
  kNotThere,       // epoll: the descriptor is not in the set
  kLoop,           // epoll: sets that contain each other, or too deep
  kNoOption,       // no such option at this level
  kOutOfRange,     // an option's value or a count
  kDomain,         // a time that is not valid
  kFamily,         // an address of another family
  kNoDestination,  // a datagram without an address on an unconnected socket
  kNotPermitted,
  kNoBuffers,
  kBadPointer,
  kNoSuchName,  // no congestion control has this name
};

/// These results are compared with what attempts return, so they have names.
[[nodiscard]] long failure(Error cause);
[[nodiscard]] long failure(Refusal cause);
/// The errno that a call through the kernel table has just set.
[[nodiscard]] long kernel_failure();
/// Turns -1 and errno (the convention of a Kernel member) into a negative errno.
[[nodiscard]] inline long kernel_result(long result) {
  return result >= 0 ? result : kernel_failure();
}

/// "Not now": what an attempt returns if there is nothing to do (-EAGAIN).
extern const long kAgain;
/// A wait has ended by its time limit (never shown to the program in this form).
extern const long kTimedOutWait;
/// A signal handler ran (-EINTR).
extern const long kInterrupted;
/// The connection has moved to a pump before the call has done anything, which is to be made anew
/// (socket/family/pumped.h; never shown to the program).
extern const long kMoved;
/// A relay does the call for the process, which the caller asks for that (preload/relayed.h; never shown to the
/// program).
extern const long kRelayed;

/// The positive errno of a cause, as SO_ERROR reports it; 0 for kNone.
[[nodiscard]] int option_error(Error cause);

}  // namespace bypass::socket
