// Heirs: how the processes of a driver (driver.h) know of each other: the keeper, the server, and the heir that waits
// for the place of both.
//
// All of it is made by the keeper, and its children inherit it. What the server says after it has given rights up is
// taken for no more than that the driver ends.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "socket/family/wires.h"

namespace bypass::runtime {

/// One that makes drivers, as it is seen with rights: /proc may show nobody of root's without (proc(5), hidepid).
struct Seen {
  std::uint32_t pid = 0;  // 0: nobody
  std::uint64_t start_time = 0;
};
[[nodiscard]] Seen see(pid_t pid);

/// The server, in memory that only the keeper and its heirs have.
struct LastServer {
  std::atomic<std::uint32_t> pid;
  std::atomic<std::uint64_t> start_time;
};
/// Null: there is no memory, and so there are no heirs.
[[nodiscard]] LastServer* make_last_server();
/// In the server while it has rights, which lets go of it: those who follow wait for its end. Null: nobody follows.
void introduce_to_heirs(LastServer* server);
/// Its locks are free before all else is that it had open: a port, for instance.
void await_end(const LastServer& server);

struct Words {
  int done = -1;                     // an eventfd: there is nothing more to serve
  std::array<int, 2> heirs{-1, -1};  // a pipe of Seen, to the server; -1: there can be no heirs
};
[[nodiscard]] Words make_words();
/// In the keeper, for the server that is there and for the next one. Nothing, where `heir` is no process.
void tell_of_heir(const Words& words, pid_t heir);
/// In the server: the last that it was told of is the one that the family knows of.
void hear_of_heirs(const Words& words, socket::Maker& heir);
/// In the server: the keeper may have been killed, and cannot end the heir.
void tell_done(const Words& words);
[[nodiscard]] bool is_done(const Words& words);

}  // namespace bypass::runtime
