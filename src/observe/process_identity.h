// Which process a stats file belongs to. The pid alone is not enough: another process may have it now.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace bypass::observe {

struct ProcessIdentity {
  pid_t pid = 0;
  std::uint64_t start_time = 0;     // clock ticks since boot; 0: /proc could not be read
  std::uint64_t pid_namespace = 0;  // inode; 0: unknown
};

ProcessIdentity self_identity();

/// 0: there is no such process (or only its zombie).
std::uint64_t start_time_of(pid_t pid);
std::uint64_t own_pid_namespace();

enum class Liveness : std::uint8_t { kAlive, kDead, kElsewhere };
/// kElsewhere: the process is in another pid namespace, so nothing is known here.
Liveness liveness(const ProcessIdentity& identity);

/// Whether the process's real, effective or saved user is `user` (proc_pid_status(5)); false if that cannot be read.
bool runs_as(pid_t pid, uid_t user);

/// The process's name as ps(1) and ss(8) show it: 15 characters at most; without /proc, argv[0] without its folder.
void command_of_self(char* out, std::size_t size);

}  // namespace bypass::observe
