// FamilyProcess: a process of our own that stays in the program's arena, with the rights that the program has now: a
// pump (pump_process.h), or a relay (relay_process.h).
//
// A process of one thread makes it, without a thread of ours. It is a child of init.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "os/pump_name.h"

namespace bypass::socket {
struct File;
}

namespace bypass::runtime {

/// A pair of Unix sockets. An end that is not given away is closed.
class UnixPair {
 public:
  /// `type`: SOCK_STREAM or SOCK_SEQPACKET. Both ends are closed on exec.
  explicit UnixPair(int type);
  ~UnixPair();
  UnixPair(const UnixPair&) = delete;
  UnixPair& operator=(const UnixPair&) = delete;

  explicit operator bool() const { return fd_[0] >= 0; }
  [[nodiscard]] int operator[](std::size_t i) const { return fd_[i]; }
  int take(std::size_t i);
  void close(std::size_t i);

 private:
  std::array<int, 2> fd_{-1, -1};
};

/// Names an end. Each end's name holds both addresses: getpeername() reads the other end's.
[[nodiscard]] bool name_end(int fd, const socket::PumpName& as);

/// Reads a word from the other process, which has 10 s for it. False: it has ended, or says nothing.
[[nodiscard]] bool hear(int control, void* word, std::size_t bytes);

/// What runs in the new process; it does not return.
struct Work {
  void (*run)(const void* what);
  const void* what;
};

/// Forks the process. `control`: a pair of which the caller has the first end, and the new process the second one.
/// `shared`: an object that the new process adopts, or null. Returns the process's pid; 0: there is none.
[[nodiscard]] std::uint32_t fork_family_process(UnixPair& control, socket::File* shared, const Work& work);

/// To be called first in the new process. Lets go of everything of the program's, except the descriptors `kept` (below
/// 0: none). `control` takes the place of standard input, output and error. If it returns true, adopt_number() for what
/// is shared and end_fork_child() follow. False: the process has no arena, and has to end.
[[nodiscard]] bool leave_program(const char* name, std::span<const int> kept, int control);

/// Ends the process.
[[noreturn]] void end_family_process();

}  // namespace bypass::runtime
