// Heirs: how the processes of a driver (driver.h) know of each other: the keeper, the server, and the heir that waits
// for the place of both.
//
// The keeper makes everything, and its children inherit it. Once the server has given rights up, its word counts only
// for one thing: that the driver is to end.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "socket/family/wires.h"

namespace bypass::runtime {

/// A process that makes drivers, as a process with rights sees it. Without rights, /proc may show no process of root's
/// (proc(5), hidepid).
struct Seen {
  std::uint32_t pid = 0;  // 0: there is none
  std::uint64_t start_time = 0;
};
[[nodiscard]] Seen see(pid_t pid);

/// The server, described in memory that only the keeper and its heirs have.
struct LastServer {
  std::atomic<std::uint32_t> pid;
  std::atomic<std::uint64_t> start_time;
};
/// Null: there is no memory, and so there are no heirs.
[[nodiscard]] LastServer* make_last_server();
/// Called in the server while it has rights. The server notes itself in that memory, and unmaps it: the heirs wait for
/// the server's end. Null: there are no heirs.
void introduce_to_heirs(LastServer* server);
/// Waits for the server's complete end. The kernel frees a process's locks before everything else that it had open,
/// such as a port.
void await_end(const LastServer& server);

struct Words {
  int done = -1;                     // an eventfd: signals that nothing is left to serve
  std::array<int, 2> heirs{-1, -1};  // a pipe that carries Seen to the server; -1: there can be no heirs
};
[[nodiscard]] Words make_words();
/// Called in the keeper: tells the present server and the next one about the heir. Does nothing if `heir` is no
/// process.
void tell_of_heir(const Words& words, pid_t heir);
/// Called in the server: reads what it was told. The family gets to know the last heir.
void hear_of_heirs(const Words& words, socket::Maker& heir);
/// Called in the server. The keeper may have been killed, and then cannot end the heir.
void tell_done(const Words& words);
[[nodiscard]] bool is_done(const Words& words);

}  // namespace bypass::runtime
