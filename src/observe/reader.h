// The reader's side of layout.h: a copy of a process's stats as plain values. For tools and tests.
//
// Another user may control a file's content: it is read by stats_file.h. The texts of a Snapshot went through
// printable.h; those within its records did not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "observe/layout.h"

namespace bypass::observe {

struct CounterValue {
  std::string name;
  std::string unit;
  std::uint64_t value = 0;
};

struct SocketEntry {
  std::uint32_t slot = 0;
  SocketRecord record{};
  bool is_v6 = false;  // known to be AF_INET6; only for sockets that the command reads from the kernel
};

struct SettingEntry {
  std::string key, value, where;
};

struct Snapshot {
  std::string path;  // path of its file
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t created_ns = 0;
  std::uint64_t updated_ns = 0;
  std::uint64_t sockets_missing = 0;
  std::uint64_t whys_lost = 0;
  std::int32_t port_owner = 0;  // pid of the process that has the family's ports; 0: none
  bool elsewhere = false;       // it is in another pid namespace, so its pid means nothing here
  std::string command, library_version, profile;
  std::vector<CounterValue> counters;
  std::vector<PortRecord> ports;
  std::vector<SocketEntry> sockets;
  std::vector<WhyRecord> whys;
  std::vector<SettingEntry> settings;  // those that are not at their defaults

  /// True if another process shows the ports, the counters and the connections without a socket.
  [[nodiscard]] bool follows() const { return port_owner != 0 && port_owner != pid; }
};

/// Reads one stats file. False: `problem` says what is wrong with it.
bool read_stats(int directory, const std::string& name, Snapshot& out, std::string& problem);

/// Asks the process with that stats file for a drill, and waits up to `patience_ms` for its answer: the number of
/// objects to which it was done. -1: there is no answer yet, or `problem` says why it could not be asked.
int ask_drill(const std::string& path, Drill drill, int patience_ms, std::string& problem);

struct Listing {
  std::vector<Snapshot> processes;    // by pid
  std::vector<std::string> problems;  // directories and files that could not be read
};

/// Removes files of dead processes and reads the others; `pid` 0 means every process. A missing directory counts as
/// empty, and is no problem.
Listing read_run_dir(const std::string& path, std::int32_t pid);

}  // namespace bypass::observe
