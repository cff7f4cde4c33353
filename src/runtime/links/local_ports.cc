// The directory of ports that this user's processes serve by libbypass: connections within the host find each other
// there.
#include <netinet/in.h>
#include <sys/resource.h>

#include <string>
#include <utility>

#include "config/config.h"
#include "fastpath/shm/rendezvous/directory.h"
#include "observe/region.h"
#include "os/kernel.h"
#include "os/log/log.h"
#include "os/log/run_dir.h"
#include "runtime/high_numbers.h"
#include "runtime/links/place_number.h"
#include "runtime/process_graph.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

/// Whether the descriptors for connections within the host would lie among the program's numbers. Those are few here,
/// and the program would miss each.
bool takes_scarce_numbers(const fastpath::shm::Directory& directory) {
  constexpr rlim_t kFew = 512;
  const rlim_t limit = soft_limit();
  return limit <= kFew && static_cast<rlim_t>(directory.folder()) < limit;
}

}  // namespace

/// Without a run directory no connection is local: no process could find another.
void open_local_ports(Process& p) {
  if (!p.config.local) return;
  std::string problem;
  const int folder = open_run_dir(run_dir_path(p.config.run_dir), true, problem);
  // The report of the stats file has said already that the directory itself cannot be used.
  bool quiet = folder < 0 || p.config.asks_for_nothing();
  if (folder >= 0) {
    const char* why = "";
    auto opened = fastpath::shm::Directory::open(folder, &why);
    if (opened.ok()) p.local_ports = std::move(opened.value);
    if (!opened.ok()) problem = run_dir_path(p.config.run_dir) + "/local-ports cannot be used: " + why;
    if (!opened.ok() && !p.config.run_dir.empty() && !may_write(folder)) quiet = false;
    if (p.local_ports.is_open() && takes_scarce_numbers(p.local_ports)) {
      p.local_ports = {};
      problem =
          "descriptors of its own would be among the few of the program's (RLIMIT_NOFILE); raise the hard limit "
          "(ulimit -Hn) above the soft one";
    }
    p.place = place_number(folder);
    socket::kernel->close(folder);
  }
  if (p.local_ports.is_open()) return;
  BYPASS_LOG(quiet ? LogLevel::kInfo : LogLevel::kWarn, "no shared memory within the host: %s", problem.c_str());
  if (folder >= 0) p.region.why(Reason::kNoSharedMemory, -1, IPPROTO_TCP, {}, problem.c_str());
}

}  // namespace bypass::runtime
