// Pumped: connections that a process of ours carries between the stack and a kernel's socket, as processes go on with
// them that may not share the arena (runtime/family/pump_process.h).
//
// The connection moves to a new object, the pump's alone. The old one stays for who has a number of it: it says where
// the kernel's socket is, which takes the number's place at the next call (preload/pumped.h).
#pragma once

#include <cstdint>

#include "os/pump_name.h"
#include "socket/api.h"

namespace bypass::socket {

/// Whether all that this process has on the wire are connections that can be pumped, and there are some, though not
/// many: each takes a process. What another process takes from (takers.h) is left out. Takes the lock.
[[nodiscard]] bool has_pumpable_alone();
/// The same of one object: a connection on the wire that stands, is in no epoll set, and asks for no signals. Takes the
/// lock.
[[nodiscard]] bool is_pumpable(File& file);

/// What the kernel's socket is to be like.
struct PumpedSocket {
  PumpName name;
  std::uint16_t status = 0;                                   // O_NONBLOCK
  std::uint32_t receive_timeout_ms = 0, send_timeout_ms = 0;  // 0: for ever; ~0: no time at all
  std::uint32_t low_water = 1;
  bool shut_receive = false, shut_send = false, keep_alive = false;
  bool aborts = false;  // SO_LINGER with no time: close() resets
};

/// Where the program's end is: in a process that has the rights of this one, under that number.
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
/// The connection moves. Whoever is inside of the old object, or sleeps there, is called. Takes the lock.
void move_to_pump(File& file, File& pumped, const PumpedAt& at);
/// Of an object whose connection has moved.
[[nodiscard]] PumpedAt where_pumped(File& file);

/// In the pump: whether the connection has moved to its object. Takes the lock.
[[nodiscard]] bool has_moved(File& pumped);
/// In the pump: whether a process beside this one has the old object. poll() of that says POLLHUP when none has.
[[nodiscard]] bool is_awaited(File& file);
/// How the connection ends with its last number: by RST, or as close() ends it.
enum class PumpsEnd : bool { kAborts, kCloses };
void set_pumps_end(File& pumped, PumpsEnd end);
/// A process has the object no longer. Lock held.
void tell_pump(File& file);
/// What poll() says of such an object. Lock held.
[[nodiscard]] std::uint32_t pumped_bits(const Socket& socket);

}  // namespace bypass::socket
