// PathCalls: how each path of a socket does a call. Calls, readiness and options use the row of a socket's path. Code
// that changes the path names paths directly.
//
// The rows are constant, and each process has its own: no function pointer lies in the arena, because processes share
// that at one address while their code lies at several. Short calls (at_once.h) keep a branch of their own.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "socket/api.h"

namespace bypass::socket {

class Guard;
struct File;
struct Socket;

enum class Path : std::uint8_t {
  kUndecided,  // stream: the kernel socket answers everything
  kBypass,     // the stack's
  kDual,       // both: wildcard listeners, datagrams
  kLocal,      // stream: the kernel's connection, whose bytes may move to memory that both ends share
  kKernel,     // decided for the kernel; the caller drops the object
  kPumped,     // stream: a process of ours has the connection; the number is to name the kernel's socket (pumped.h)
};
inline constexpr std::size_t kPaths = 6;

/// No member is ever null.
struct PathCalls {
  /// The socket is the kernel's connection: the kernel reports its end and errors, and has its options.
  bool in_kernel = false;
  /// The socket needs the wire, and so an owner of the ports.
  bool on_wire = false;

  // --- Calls on a stream. Lock not held.
  long (*receive)(Socket& socket, int fd, Message& message, int flags);
  long (*send)(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
  long (*send_file)(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
  long (*shutdown)(Socket& socket, int fd, int how);
  /// ioctl(2) requests that return a number: the number, or a failure. Nullopt: the kernel's answer is right.
  std::optional<long> (*number)(Socket& socket, int fd, unsigned long request);

  // --- Readiness. Lock held.
  /// The bits that poll() reports for a stream.
  std::uint32_t (*bits)(const Socket& socket);
  /// Whether it is known, without a call of the kernel, that nothing unread has come.
  bool (*is_known_empty)(File& file);
  /// Whether a waiter must look at more than the kernel. Also called without the lock: then the answer is a hint.
  bool (*is_looked_at)(const Socket& socket);
  /// One more sleeping thread waits for the socket.
  void (*add_sleeper)(Socket& socket);

  // --- Options and errors. Lock held.
  /// TCP_CORK or TCP_NODELAY was set. `pushes`: held bytes must be sent (tcp(7)).
  void (*note_cork)(Guard& guard, Socket& socket, bool pushes);
  /// An option was set that limits what the kernel takes, or holds for a reader. May release the lock for a time.
  void (*note_buffers)(Guard& guard, Socket& socket, int fd);
  /// Adds to the kernel's TCP_INFO what the kernel does not know.
  void (*add_to_tcp_info)(Socket& socket, std::span<std::byte> info);
  /// The program was given `error`, an errno that was kept here.
  void (*told_error)(Socket& socket, int error);

  // --- Numbers and processes. Lock held.
  /// In a forked child: from now on parent and child both use what the parent had.
  void (*adopt)(Socket& socket);
  /// `fd` is about to be closed, while the socket stays.
  void (*number_goes)(Socket& socket, int fd);
  /// This process has no number of the socket any more; other processes have.
  void (*forget)(Socket& socket);
  /// Gives the socket to the kernel alone, with all bytes in order, if it is the kernel's connection. May release the
  /// lock.
  void (*leave)(Guard& guard, Socket& socket);
  /// The socket's last number is about to be closed, or its process ends.
  void (*end)(Guard& guard, Socket& socket);
};

/// Indexed by Path.
extern const std::array<PathCalls, kPaths> path_calls;

}  // namespace bypass::socket
