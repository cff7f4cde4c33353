// Pumped: connections that a process of ours carries between the stack and a kernel's socket. Processes that may not
// share the arena go on with the kernel's socket (runtime/family/pump/pump_process.h).
//
// The connection moves to a new object, which only the pump has. Processes that have a number for the connection keep
// the old object. It says where the kernel's socket is, which takes the number's place at the next call
// (preload/pumped.h).
#pragma once

#include <cstdint>

#include "os/pump_name.h"
#include "socket/api.h"

namespace bypass::socket {

/// Whether all that this process has on the wire are connections that can be pumped, and there are some, though not
/// many: each takes a process. What another process takes from (receivers.h) is left out. Takes the lock.
[[nodiscard]] bool has_pumpable_alone();
/// Whether the object can be pumped: a connection on the wire that is established, is in no epoll set, and asks for no
/// signals. Takes the lock.
[[nodiscard]] bool is_pumpable(File& file);

/// What the kernel's socket is to be like.
struct PumpedSocket {
  PumpName name;
  std::uint16_t status = 0;                                   // O_NONBLOCK
  std::uint32_t receive_timeout_ms = 0, send_timeout_ms = 0;  // 0: for ever; ~0: no time at all
  std::uint32_t low_water = 1;
  bool shut_receive = false, shut_send = false, keep_alive = false;
  bool aborts = false;  // SO_LINGER with time 0: close() resets
};

/// Where the program's end is: in a process that has the same rights as this one, under that number.
struct PumpedAt {
  std::uint32_t pid;
  std::int32_t number;
  std::uint32_t inode;          // of the socket, to know it by: the kernel counts these in 32 bits (get_next_ino)
  std::uint32_t pid_namespace;  // its inode, as short (proc_alloc_inum): the pump has that pid there. 0: not known
};

/// A process that has the connection cannot come for the kernel's socket, from here on: nobody has it pumped. Takes the
/// lock.
void forbid_pump(File& file);
/// The object that the connection is to move to, with a reference of this process's; null: no memory. Takes the lock.
File* make_pumped(File& file, PumpedSocket& described);
/// Moves the connection. Threads that are inside the old object, or sleep there, are called. Takes the lock.
void move_to_pump(File& file, File& pumped, const PumpedAt& at);
/// For an object whose connection has moved.
[[nodiscard]] PumpedAt where_pumped(File& file);

/// In the pump: whether the connection has moved to its object. Takes the lock.
[[nodiscard]] bool has_connection(File& pumped);
/// In the pump: whether a process beside this one has the old object. poll() of that says POLLHUP when none has.
[[nodiscard]] bool is_awaited(File& file);
/// How the connection ends when its last number is closed: by RST, or as by close().
enum class PumpsEnd : bool { kAborts, kCloses };
void set_pumps_end(File& pumped, PumpsEnd end);
/// A process does not have the object any more. Lock held.
void tell_pump(File& file);
/// What poll() reports for such an object. Lock held.
[[nodiscard]] std::uint32_t pumped_bits(const Socket& socket);

}  // namespace bypass::socket
