// ioctl(2) and the flags of fcntl(2) on sockets of the stack: what FIONREAD, SIOCOUTQ and their like answer.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "os/errno_map.h"
#include "os/program_memory.h"
#include "socket/shared/local_kernel.h"
#include "socket/socket.h"
#include "socket/stream/stream_calls.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

namespace {

long answer(void* argument, std::size_t value) {
  const bool told = argument != nullptr && copy_to_program(static_cast<int*>(argument), static_cast<int>(value));
  return told ? 0 : failure(Refusal::kBadPointer);
}

long set_status_bit(File& file, int fd, int bit, const void* argument) {
  int value = 0;
  if (argument == nullptr || !copy_from_program(value, static_cast<const int*>(argument)))
    return failure(Refusal::kBadPointer);
  const bool on = value != 0;
  const long now = status_flags(file, fd);
  return set_status_flags(file, fd, static_cast<int>(on ? now | bit : now & ~bit));
}

std::optional<long> control_connection(Socket& socket, unsigned long request, void* argument) {
  Guard guard(shard());
  if (connection_of(socket) == nullptr) return std::nullopt;
  switch (request) {
    case FIONREAD:
      if (stream::readable(*socket.tcb) == 0) {  // a program may wait by asking
        shard().poll_locked();
        dispatch_events(shard().stack());
        if (connection_of(socket) == nullptr) return std::nullopt;
      }
      return answer(argument, stream::readable(*socket.tcb));
    case SIOCOUTQ:
      return answer(argument, stream::unacknowledged(guard.context(), *socket.tcb));
    case SIOCOUTQNSD:
      return answer(argument, tcp_engine().info(*socket.tcb).unsent);
    case SIOCATMARK:
      return answer(argument, 0);
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<long> control(File& file, int fd, unsigned long request, void* argument) {
  if (request == FIONBIO) return set_status_bit(file, fd, O_NONBLOCK, argument);
  if (request == FIOASYNC) return set_status_bit(file, fd, O_ASYNC, argument);
  if ((request == FIOSETOWN || request == SIOCSPGRP) && argument != nullptr && is_readable(argument, sizeof(int)))
    return set_async(file, fd, F_SETOWN,
                     reinterpret_cast<void*>(static_cast<long>(*static_cast<const int*>(argument))));
  switch (kind(file)) {
    case FileKind::kStream:
      if (socket_of(file).path == Path::kLocal && request == FIONREAD) {
        const std::optional<long> bytes = local_readable(socket_of(file), fd);
        return bytes.has_value() ? std::optional(answer(argument, static_cast<std::size_t>(*bytes))) : std::nullopt;
      }
      if (socket_of(file).path == Path::kLocal && request == SIOCATMARK && local_is_before_mark(socket_of(file), fd))
        return answer(argument, 0);
      // What reset_in_kernel() leaves is counted as if it were unacknowledged.
      if (socket_of(file).path == Path::kLocal && request == SIOCOUTQ && is_closed_in_kernel(fd))
        return answer(argument, 0);
      if (socket_of(file).path != Path::kBypass) return std::nullopt;
      return control_connection(socket_of(file), request, argument);
    case FileKind::kListener: {
      const bool connections_only = request == FIONREAD || request == SIOCOUTQ || request == SIOCOUTQNSD;
      if (connections_only) return failure(Error::kInvalid);
      return std::nullopt;
    }
    case FileKind::kDatagram:
      return datagram_control(socket_of(file), fd, request, argument);
    case FileKind::kEpoll:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace bypass::socket
