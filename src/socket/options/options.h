// Options: one table of what getsockopt and setsockopt do on the stack: level, name, size, getter, setter.
//
// On a socket with a kernel socket of its own (undecided, listener, datagram), every option is set there first. So the
// program gets the kernel's errno, and the value is ready if the socket is left to the kernel. Then the options of the
// table are taken over. On a connection of the stack the table answers. An option that the table does not have is kept
// by a kernel socket under the number if it is harmless. Otherwise it is refused, and recorded for `bypass why`.
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
  /// Writes the value to `out` (the room that the program gave). Returns the bytes written, or a failure. Null:
  /// write-only.
  long (*get)(Socket& socket, std::span<std::byte> out);
  /// Lock held. Null: read-only.
  long (*set)(Guard& guard, Socket& socket, std::span<const std::byte> value);
  /// Its value is in Socket::details.
  bool in_details = false;
};

/// The rows of SOL_SOCKET, of TCP and of IP.
[[nodiscard]] std::array<std::span<const OptionRow>, 3> option_rows();
/// Null if the table does not have this option for such a socket.
[[nodiscard]] const OptionRow* find_option(const Socket& socket, int level, int name);

[[nodiscard]] tcp::Options tcp_options(const Socket& socket);
void set_tcp_options(Guard& guard, Socket& socket, const tcp::Options& options);

/// A connection's options, to be set on the kernel socket that takes its place.
class KernelOptions {
 public:
  /// Lock held.
  void take(Socket& socket);
  /// Sets those that differ on the kernel socket. Called without the lock.
  void set(int fd) const;

 private:
  static constexpr std::size_t kMost = 64, kBytes = 16;
  struct Value {
    const OptionRow* row;
    std::array<std::byte, kBytes> bytes;
    std::size_t size;
  };
  void take(Socket& socket, const OptionRow& row);

  std::array<Value, kMost> values_;
  std::size_t count_ = 0;
};

/// For `bypass why`: the option was set, and the stack has not built it (option_kinds.h).
void report_option(int fd, int level, int name);
/// The same for the option because of which the socket was left to the kernel.
void report_kernel_option(const Socket& socket, int fd);

/// TCP_INFO.
long get_tcp_info(Socket& socket, std::span<std::byte> out);
/// For a local connection: adds the bytes that its ring has carried, and their times, to the kernel's values. Only the
/// kernel's segments are counted. Lock held.
void add_ring_to_tcp_info(Socket& socket, std::span<std::byte> out);

}  // namespace bypass::socket
