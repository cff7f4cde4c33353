// Region: this process's stats file, mapped; the writer's side of layout.h.
//
// It is made when a process first uses the bypass, and never by a process that does not. It is unlinked at exit; the
// next writer, and readers, remove what a killed process leaves. Every call is cheap, allocates nothing, may be made
// from a signal handler, and does nothing while there is no region. Only create() and remove() make system calls (and a
// socket claim once every kSocketChunk).
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "observe/layout.h"
#include "observe/reasons.h"
#include "stack/address.h"
#include "stack/counters.h"

namespace bypass::observe {

struct RegionStart {
  std::string run_dir;  // runtime::run_dir_path(config.run_dir)
  const char* library_version = "";
  const char* profile = "";
  std::span<const CounterInfo> counters;  // names in the order of publish_counters' values
  std::string settings = {};              // as layout.h describes them; what does not fit is cut
};

class Region {
 public:
  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { remove(); }

  /// Makes the file. Begins with the kEscapedExec reports of this process's last program, which exec replaced.
  bool create(const RegionStart& start, std::string& problem);
  /// Unlinks the file, if this process made it. Its memory stays mapped: another thread may be inside a call, and
  /// the process is about to end. Async-signal-safe.
  void remove();
  /// A forked child forgets its parent's region (async-signal-safe). It makes its own when it uses the bypass.
  void abandon();
  [[nodiscard]] bool active() const { return header() != nullptr; }
  /// To be called before remove(): passes the kEscapedExec reports on to the next create(), in this program or in the
  /// one that exec is about to start.
  void keep_for_exec();

  /// Publishes all counters, in the table's order; those beyond `values` are 0. `now_ns` is CLOCK_REALTIME.
  void publish_counters(std::span<const std::uint64_t> values, std::uint64_t now_ns);
  void set_port_owner(pid_t pid);
  void set_port(std::size_t index, const PortRecord& record);

  /// A slot for a socket's life; -1 if no slot is left (this is counted; the other calls ignore -1).
  int claim_socket();
  /// Only one thread at a time writes a slot: the holder of the shard's lock.
  void update_socket(int slot, const SocketRecord& record);
  void release_socket(int slot);

  /// A drill that was asked for and not done yet. finish_drill() reports to how many objects it was done.
  [[nodiscard]] Drill wanted_drill() const;
  void finish_drill(std::uint32_t count);

  /// Reports that something was left to the kernel. The same reason for the same address is one entry with a count.
  /// With `fd` -1 the report is about the process, and the same text is one entry. Reports before create() are kept and
  /// written then.
  void why(Reason reason, int fd, std::uint8_t protocol, const Endpoint& address, const char* detail);

 private:
  static constexpr std::size_t kMostKept = 16;
  struct Kept {
    std::uint64_t key;
    WhyRecord record;
  };

  void begin_showing(Header* header);
  void keep(const Kept& news);
  void show(Header* header, const Kept& news);
  bool lock_whys();
  [[nodiscard]] Header* header() const { return header_.load(std::memory_order_acquire); }
  void take_from_replaced(int directory, const std::string& name);
  Header* map_file(int directory, const std::string& name, std::string& problem);
  bool grow_sockets(Header* header, std::uint32_t have);

  std::atomic<Header*> header_{nullptr};
  std::atomic<std::uint32_t> socket_hint_{0};
  // Under why_lock_: the keys of the entries, which find a repetition without reading the file's records, and the
  // ring's next place.
  std::atomic_flag why_lock_ = ATOMIC_FLAG_INIT;
  std::array<std::uint64_t, kMaxWhys> why_keys_{};
  std::size_t why_used_ = 0;
  std::size_t why_next_ = 0;
  std::array<Kept, kMostKept> kept_{};
  std::size_t kept_used_ = 0;
  std::uint64_t kept_lost_ = 0;
  std::string path_;
  pid_t owner_ = 0;
};

/// Removes the files of dead processes of this pid namespace from an open run directory. Returns how many.
int sweep_dead(int directory);

/// file_name() makes PID-STARTTIME.stats; the other function parses it: false for any other name.
std::string file_name(std::int32_t pid, std::uint64_t start_time);
bool parse_file_name(std::string_view name, std::int32_t& pid, std::uint64_t& start_time);

}  // namespace bypass::observe
