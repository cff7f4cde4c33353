#include "observe/reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "observe/printable.h"
#include "observe/process_identity.h"
#include "observe/region.h"
#include "observe/stats_file.h"
#include "os/log/run_dir.h"

namespace bypass::observe {
namespace {

/// Limit for one directory, so that its owner cannot fill the reader's memory.
constexpr std::size_t kMostBytes = std::size_t{256} << 20;

void copy_header(const StatsFile& file, Snapshot& out) {
  const Header& header = file.header();
  out.pid = header.pid;
  out.uid = file.owner() == geteuid() ? header.uid : file.owner();  // another user's claim is not believed
  out.start_time = header.start_time;
  out.created_ns = header.created_ns;
  out.updated_ns = header.updated_ns.load(std::memory_order_relaxed);
  out.sockets_missing = header.sockets_missing.load(std::memory_order_relaxed);
  out.whys_lost = header.whys_lost.load(std::memory_order_relaxed);
  out.port_owner = header.port_owner.load(std::memory_order_relaxed);
  out.elsewhere = header.pid_namespace != own_pid_namespace();
  out.command = printable(header.command);
  out.library_version = printable(header.library_version);
  out.profile = printable(header.profile);
}

/// Replaces an unknown state: readers have tables indexed by the state.
SocketRecord checked(SocketRecord record) {
  if (record.state > static_cast<std::uint8_t>(SocketState::kOpen))
    record.state = static_cast<std::uint8_t>(SocketState::kClosed);
  return record;
}

void copy_records(const StatsFile& file, Snapshot& out) {
  const Header& header = file.header();
  for (const auto& counter : file.records<CounterRecord>(header.counters, kMaxCounters))
    out.counters.push_back(
        {printable(counter.name), printable(counter.unit), counter.value.load(std::memory_order_relaxed)});
  for (const auto& port : file.slots<PortRecord>(header.ports, kMaxPorts))
    if (port.has_value()) out.ports.push_back(*port);
  std::uint32_t slot = 0;
  for (const auto& socket : file.slots<SocketRecord>(header.sockets, kMaxSockets)) {
    if (socket.has_value()) out.sockets.push_back({.slot = slot, .record = checked(*socket)});
    slot++;
  }
  for (const auto& why : file.slots<WhyRecord>(header.whys, kMaxWhys))
    if (why.has_value()) out.whys.push_back(*why);
}

void copy_settings(const StatsFile& file, Snapshot& out) {
  const auto bytes = file.records<char>(file.header().settings, kMaxSettingBytes);
  std::vector<std::string> fields;
  for (auto at = bytes.begin(); at != bytes.end();) {
    const auto end = std::find(at, bytes.end(), '\0');
    fields.push_back(printable(std::string(at, end)));
    at = end == bytes.end() ? end : end + 1;
  }
  for (std::size_t i = 0; i + 2 < fields.size(); i += 3)
    out.settings.push_back({fields[i], fields[i + 1], fields[i + 2]});
}

/// Checks that the file belongs to the process in its name, and that this process runs as the file's owner. Returns
/// what is wrong; empty: it is right.
std::string wrong_about_owner(const StatsFile& file, const std::string& name) {
  ProcessIdentity named;
  const Header& header = file.header();
  if (!parse_file_name(name, named.pid, named.start_time) || named.pid != header.pid ||
      named.start_time != header.start_time)
    return "names another process inside";
  const bool trusted = file.owner() == geteuid() || file.owner() == 0;  // a root process may have given up its rights
  if (trusted || header.pid_namespace != own_pid_namespace() || runs_as(named.pid, file.owner())) return "";
  return "its owner, the user " + std::to_string(file.owner()) + ", does not run that process";
}

// Bytes that a reader keeps of a file.
std::size_t weight(const Snapshot& snapshot) {
  return sizeof snapshot + snapshot.sockets.size() * sizeof(SocketEntry) + snapshot.whys.size() * sizeof(WhyRecord) +
         snapshot.ports.size() * sizeof(PortRecord) + snapshot.counters.size() * sizeof(CounterValue) +
         kMaxSettingBytes;
}

std::vector<std::string> stats_files(int directory, std::int32_t wanted) {
  std::vector<std::string> names;
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = copy < 0 ? nullptr : fdopendir(copy);
  if (listing == nullptr) return names;
  while (const dirent* entry = readdir(listing)) {
    std::int32_t pid = 0;
    std::uint64_t start_time = 0;
    if (parse_file_name(entry->d_name, pid, start_time) && (wanted == 0 || pid == wanted))
      names.emplace_back(entry->d_name);
  }
  closedir(listing);
  return names;
}

}  // namespace

bool read_stats(int directory, const std::string& name, Snapshot& out, std::string& problem) {
  StatsFile file;
  if (file.open(directory, name, O_RDONLY, problem)) problem = wrong_about_owner(file, name);
  if (!problem.empty()) {
    problem = name + ": " + problem;
    return false;
  }
  copy_header(file, out);
  copy_records(file, out);
  copy_settings(file, out);
  return true;
}

int ask_drill(const std::string& path, Drill drill, int patience_ms, std::string& problem) {
  const std::size_t slash = path.rfind('/');
  const int directory = runtime::open_run_dir(path.substr(0, slash), false, problem);
  if (directory < 0) return -1;
  StatsFile file;
  const bool opened = file.open(directory, path.substr(slash + 1), O_RDWR, problem);
  close(directory);
  if (!opened) {
    problem = printable(path) + ": " + problem;
    return -1;
  }
  // Each write is one word. The process, which has the file mapped, sees it at once and complete.
  const auto kind = static_cast<std::uint32_t>(drill);
  const std::uint32_t number = file.header().drills_done.load(std::memory_order_relaxed) + 1;
  if (!file.write(&kind, sizeof kind, offsetof(Header, drill)) ||
      !file.write(&number, sizeof number, offsetof(Header, drills_asked))) {
    problem = printable(path) + ": cannot be written to";
    return -1;
  }
  for (int waited = 0; waited <= patience_ms; waited++) {
    std::uint32_t done = 0, result = 0;
    if (!file.read(&done, sizeof done, offsetof(Header, drills_done))) return -1;
    if (done == number)
      return file.read(&result, sizeof result, offsetof(Header, drill_result)) ? static_cast<int>(result) : -1;
    usleep(1000);
  }
  return -1;
}

Listing read_run_dir(const std::string& path, std::int32_t pid) {
  Listing listing;
  std::string problem;
  const int directory = runtime::open_run_dir(path, false, problem);
  if (directory < 0) {
    if (errno != ENOENT) listing.problems.push_back(printable(problem));
    return listing;
  }
  sweep_dead(directory);
  std::size_t held = 0;
  for (const std::string& name : stats_files(directory, pid)) {
    if (held > kMostBytes) {
      listing.problems.push_back(printable(path) + ": its files hold more than can be shown; give a pid");
      break;
    }
    Snapshot snapshot;
    problem.clear();
    if (read_stats(directory, name, snapshot, problem)) {
      held += weight(snapshot);
      snapshot.path = path + "/" + name;
      listing.processes.push_back(std::move(snapshot));
    } else {
      listing.problems.push_back(printable(path) + "/" + problem);
    }
  }
  close(directory);
  std::sort(listing.processes.begin(), listing.processes.end(),
            [](const Snapshot& a, const Snapshot& b) { return a.pid < b.pid; });
  return listing;
}

}  // namespace bypass::observe
