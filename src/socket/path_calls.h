// PathCalls: what each path of a socket makes of a call. Calls, readiness and options ask the row of a socket's path.
// The code that changes a path names it.
//
// The rows are constant and each process has its own: no pointer to a function lies in the arena, which processes share
// at one address while their code lies at several. Short calls (at_once.h) keep a branch of their own.
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
};
inline constexpr std::size_t kPaths = 5;

/// No member is ever null.
struct PathCalls {
  /// It is the kernel's connection, which tells of its end and its errors, and has its options.
  bool in_kernel = false;
  /// It counts among what needs the wire: an owner of the ports.
  bool on_wire = false;

  // --- Calls on a stream. Lock not held.
  long (*receive)(Socket& socket, int fd, Message& message, int flags);
  long (*send)(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
  long (*send_file)(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
  long (*shutdown)(Socket& socket, int fd, int how);
  /// ioctl(2)'s requests that ask for a number: the number, or a failure. Nothing: the kernel's answer is the right
  /// one.
  std::optional<long> (*number)(Socket& socket, int fd, unsigned long request);

  // --- Readiness. Lock held.
  /// What poll() reports of a stream.
  std::uint32_t (*bits)(const Socket& socket);
  /// Whether it is known, without a call of the kernel's, that nothing has come that the program has not read.
  bool (*is_known_empty)(File& file);
  /// Whether one who waits for it looks beside the kernel. Also without the lock: a hint then.
  bool (*is_looked_at)(const Socket& socket);
  /// Somebody who sleeps waits for it from now on, too.
  void (*add_sleeper)(Socket& socket);

  // --- Options and errors. Lock held.
  /// TCP_CORK or TCP_NODELAY was set; `pushes`: so that what is held back goes (tcp(7)).
  void (*note_cork)(Guard& guard, Socket& socket, bool pushes);
  /// An option was set that bounds what the kernel takes, or holds for a reader. May let go of the lock.
  void (*note_buffers)(Guard& guard, Socket& socket, int fd);
  /// The kernel's TCP_INFO, to which what it does not know is added.
  void (*add_to_tcp_info)(Socket& socket, std::span<std::byte> info);
  /// The program has been told `error`, an errno that was kept here.
  void (*told_error)(Socket& socket, int error);

  // --- Numbers and processes. Lock held.
  /// In a forked child: what the parent had is used by both from now on.
  void (*adopt)(Socket& socket);
  /// `fd` is about to be closed, and the socket stays.
  void (*number_goes)(Socket& socket, int fd);
  /// This process has no number of it any more; others have.
  void (*forget)(Socket& socket);
  /// To the kernel alone, bytes in order and all of them, where it is the kernel's connection. May let go of the lock.
  void (*leave)(Guard& guard, Socket& socket);
  /// Its last number is about to be closed, or its process ends.
  void (*end)(Guard& guard, Socket& socket);
};

/// By Path.
extern const std::array<PathCalls, kPaths> path_calls;

}  // namespace bypass::socket
