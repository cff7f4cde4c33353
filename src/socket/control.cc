// ioctl(2) and the flags of fcntl(2) on sockets of the stack: what FIONREAD, SIOCOUTQ and their like answer.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "os/errno_map.h"
#include "os/program_memory.h"
#include "socket/socket.h"
#include "socket/stream/path_streams.h"
#include "socket/stream/stream_calls.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

namespace {

long answer(void* argument, long value) {
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

}  // namespace

std::optional<long> number_on_wire(Socket& socket, int, unsigned long request) {
  Guard guard(shard());
  if (connection_of(socket) == nullptr) return std::nullopt;
  switch (request) {
    case FIONREAD:
      if (stream::readable(*socket.tcb) == 0) {  // a program may wait by asking
        shard().poll_locked();
        dispatch_events(shard().stack());
        if (connection_of(socket) == nullptr) return std::nullopt;
      }
      return static_cast<long>(stream::readable(*socket.tcb));
    case SIOCOUTQ:
      return static_cast<long>(stream::unacknowledged(guard.context(), *socket.tcb));
    case SIOCOUTQNSD:
      return static_cast<long>(tcp_engine().info(*socket.tcb).unsent);
    case SIOCATMARK:
      return 0;
    default:
      return std::nullopt;
  }
}

std::optional<long> control(File& file, int fd, unsigned long request, void* argument) {
  if (request == FIONBIO) return set_status_bit(file, fd, O_NONBLOCK, argument);
  if (request == FIOASYNC) return set_status_bit(file, fd, O_ASYNC, argument);
  if ((request == FIOSETOWN || request == SIOCSPGRP) && argument != nullptr && is_readable(argument, sizeof(int)))
    return set_async(file, fd, F_SETOWN,
                     reinterpret_cast<void*>(static_cast<long>(*static_cast<const int*>(argument))));
  switch (kind(file)) {
    case FileKind::kStream: {
      const std::optional<long> number = calls_of(file).number(socket_of(file), fd, request);
      return number.has_value() ? std::optional(answer(argument, *number)) : std::nullopt;
    }
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
