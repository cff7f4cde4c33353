// Notes for `bypass why` why a socket is the kernel's. Declared in runtime/process.h.
#include <errno.h>
#include <sys/socket.h>

#include <cstdint>

#include "observe/region.h"
#include "os/kernel.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "socket/socket.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

/// The name by which the kernel knows a descriptor, where the program has given it one: a connection's peer, else the
/// socket's own address.
Endpoint name_of(int fd) {
  if (fd < 0) return {};
  const Endpoint peer = socket::kernel_peer(fd);
  return peer.port != 0 ? peer : socket::kernel_name(fd);
}

}  // namespace

void record_why(int fd, unsigned reason, const char* detail) {
  if (g_process == nullptr) return;
  const int saved = errno;
  record_why(fd, reason, name_of(fd), detail);
  errno = saved;
}

void record_why(int fd, unsigned reason, const Endpoint& address, const char* detail) {
  if (g_process == nullptr) return;
  int protocol = 0;
  socklen_t length = sizeof protocol;
  if (fd >= 0) socket::kernel->getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length);
  g_process->region.why(static_cast<Reason>(reason), fd, static_cast<std::uint8_t>(protocol), address, detail);
}

}  // namespace bypass::runtime
