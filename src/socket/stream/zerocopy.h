// Sends with MSG_ZEROCOPY on a connection of the stack. The bytes are copied, as by Linux where the card cannot gather
// them. The program learns of it as it does there (Documentation/networking/msg_zerocopy.rst): from its error queue,
// by the numbers of its sends. They are reported as soon as the bytes are copied, and neighbours together.
// Tests: tests/socket/zerocopy_test.cc.
#pragma once

#include "socket/api.h"
#include "socket/socket.h"

namespace bypass::socket {

/// Whether the program is told of a send with these flags.
[[nodiscard]] inline bool tells_of_copy(const Socket& socket, int flags) {
  return (flags & MSG_ZEROCOPY) != 0 && socket.has(kZerocopy);
}
/// To be called before such a send. Returns a failure if there is no place for a report. Lock not held.
[[nodiscard]] long prepare_copy(Socket& socket, int fd);
/// After such a send of one byte or more. Lock not held.
void note_copy(Socket& socket);
/// Whether there is something to report. Lock held.
[[nodiscard]] inline bool has_copies(const Socket& socket) {
  return socket.has(kHasCopies) && socket.details != nullptr &&
         socket.details->copies.first != socket.details->copies.next;
}
/// recvmsg(MSG_ERRQUEUE): all that there is to report. kAgain: nothing. Lock not held.
[[nodiscard]] long report_copies(Socket& socket, Message& message);

}  // namespace bypass::socket
