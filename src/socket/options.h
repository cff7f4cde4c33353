// Options: one table of what getsockopt and setsockopt mean to the stack: level, name, size, getter, setter.
//
// A socket with a kernel socket of its own (undecided, listener, datagram) sets every option there first: the
// kernel's errno is the program's, and the value is ready should the socket be left to the kernel. What the
// table knows is then taken over. A connection of the stack's is answered from the table; what the table does
// not know is kept by a kernel socket under the number if it is harmless, else refused, and recorded for `bypass why`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "socket/socket.h"

namespace bypass::socket {

struct OptionRow {
  int level;
  int name;
  /// Into `out` (its size is the room the program gave): bytes written, or a failure. Null: write-only.
  long (*get)(Socket& socket, std::span<std::byte> out);
  /// Lock held. Null: read-only.
  long (*set)(Guard& guard, Socket& socket, std::span<const std::byte> value);
  /// Its value lies in Socket::details.
  bool in_details = false;
};

[[nodiscard]] std::span<const OptionRow> option_rows();
/// Null when the table does not know it of such a socket.
[[nodiscard]] const OptionRow* find_option(const Socket& socket, int level, int name);

[[nodiscard]] tcp::Options tcp_options(const Socket& socket);
void set_tcp_options(Guard& guard, Socket& socket, const tcp::Options& options);

/// A connection's options, for the kernel socket that goes on without the stack.
class KernelOptions {
 public:
  /// Lock held.
  void take(Socket& socket);
  /// What the kernel socket has otherwise. Not holding the lock.
  void set(int fd) const;

 private:
  static constexpr std::size_t kMost = 64, kBytes = 16;
  struct Value {
    const OptionRow* row;
    std::array<std::byte, kBytes> bytes;
    std::size_t size;
  };
  std::array<Value, kMost> values_;
  std::size_t count_ = 0;
};

/// For `bypass why`: the option was set, and the stack's side has not built it (option_kinds.h).
void tell_option(int fd, int level, int name);
/// The same of the one that has left the socket to the kernel.
void tell_kernel_option(const Socket& socket, int fd);

/// TCP_INFO.
long get_tcp_info(Socket& socket, std::span<std::byte> out);
/// Of a local connection: the bytes that its ring has carried, and when, added to what the kernel says. Its segments
/// are the kernel's alone. Lock held.
void add_ring_to_tcp_info(Socket& socket, std::span<std::byte> out);

}  // namespace bypass::socket
