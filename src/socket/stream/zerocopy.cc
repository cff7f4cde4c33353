#include "socket/stream/zerocopy.h"

#include <utility>

#include "os/errno_map.h"
#include "socket/control_message.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

long prepare_copy(Socket& socket, int fd) {
  const Guard guard(shard());
  if (socket.has(kHasCopies) || connection_of(socket) == nullptr) return 0;
  if (socket.details == nullptr) give_kernel_socket(socket, fd);
  if (socket.details == nullptr) return failure(Refusal::kNoBuffers);  // as when the kernel has no memory for a report
  socket.details->copies = {};
  socket.set(kHasCopies);
  return 0;
}

void note_copy(Socket& socket) {
  Guard guard(shard());
  if (!socket.alive || !socket.has(kHasCopies) || connection_of(socket) == nullptr) return;
  socket.details->copies.next++;
  signal(socket, kError);
}

long report_copies(Socket& socket, Message& message) {
  Guard guard(shard());
  if (connection_of(socket) == nullptr || !has_copies(socket)) return kAgain;
  Copies& copies = socket.details->copies;
  message.flags = MSG_ERRQUEUE;
  report_copied(socket, copies.first, copies.next - 1, guard.context().now, message);
  copies.first = copies.next;
  return 0;
}

}  // namespace bypass::socket
