#include "observe/reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "observe/process_identity.h"
#include "observe/region.h"
#include "runtime/run_dir.h"

namespace bypass::observe {
namespace {

// A mapped file for a scope.
class Mapping {
 public:
  Mapping(int fd, std::size_t bytes, int protection = PROT_READ)
      : bytes_(bytes), memory_(mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0)) {}
  ~Mapping() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] bool ok() const { return memory_ != MAP_FAILED; }
  [[nodiscard]] const char* data() const { return static_cast<const char*>(memory_); }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* memory_;
};

template <std::size_t size>
std::string text_of(const std::array<char, size>& field) {
  return {field.data(), strnlen(field.data(), size)};
}

/// The records of a section that a reader has to look at; empty when it lies outside of the file.
template <typename Record>
std::span<const Record> records(const Mapping& map, const Section& section) {
  const std::uint64_t count = std::min(section.used.load(std::memory_order_acquire), section.capacity);
  if (section.record_bytes != sizeof(Record) || section.offset % alignof(Record) != 0) return {};
  if (section.offset + count * sizeof(Record) > map.size()) return {};
  return {reinterpret_cast<const Record*>(map.data() + section.offset), count};
}

const char* wrong_with(const Mapping& map) {
  if (!map.ok() || map.size() < sizeof(Header)) return "is too short";
  const auto* const header = reinterpret_cast<const Header*>(map.data());
  if (header->magic.load(std::memory_order_acquire) != kMagic) return "is not complete";
  if (header->version != kLayoutVersion || header->header_bytes != sizeof(Header))
    return "was written by another version of libbypass";
  return nullptr;
}

void copy_header(const Header& header, Snapshot& out) {
  out.pid = header.pid;
  out.uid = header.uid;
  out.start_time = header.start_time;
  out.created_ns = header.created_ns;
  out.updated_ns = header.updated_ns.load(std::memory_order_relaxed);
  out.sockets_missing = header.sockets_missing.load(std::memory_order_relaxed);
  out.whys_lost = header.whys_lost.load(std::memory_order_relaxed);
  out.port_owner = header.port_owner.load(std::memory_order_relaxed);
  out.elsewhere = header.pid_namespace != own_pid_namespace();
  out.command = text_of(header.command);
  out.library_version = text_of(header.library_version);
  out.profile = text_of(header.profile);
}

void copy_records(const Mapping& map, const Header& header, Snapshot& out) {
  for (const auto& counter : records<CounterRecord>(map, header.counters))
    out.counters.push_back(
        {text_of(counter.name), text_of(counter.unit), counter.value.load(std::memory_order_relaxed)});
  for (const auto& slot : records<PortSlot>(map, header.ports))
    if (PortRecord port; load_record(slot, port)) out.ports.push_back(port);
  std::uint32_t index = 0;
  for (const auto& slot : records<SocketSlot>(map, header.sockets)) {
    SocketEntry entry{index++, {}};
    if (load_record(slot, entry.record)) out.sockets.push_back(entry);
  }
  for (const auto& slot : records<WhySlot>(map, header.whys))
    if (WhyRecord why; load_record(slot, why)) out.whys.push_back(why);
}

void copy_settings(const Mapping& map, const Header& header, Snapshot& out) {
  const auto bytes = records<char>(map, header.settings);
  std::vector<std::string> fields;
  for (auto at = bytes.begin(); at != bytes.end();) {
    const auto end = std::find(at, bytes.end(), '\0');
    fields.emplace_back(at, end);
    at = end == bytes.end() ? end : end + 1;
  }
  for (std::size_t i = 0; i + 2 < fields.size(); i += 3)
    out.settings.push_back({fields[i], fields[i + 1], fields[i + 2]});
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
  const int fd = openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    problem = name + ": " + (fd < 0 ? strerrordesc_np(errno) : "is no regular file");
    if (fd >= 0) close(fd);
    return false;
  }
  const Mapping map(fd, std::max<std::size_t>(static_cast<std::size_t>(status.st_size), 1));
  close(fd);
  if (const char* const wrong = wrong_with(map); wrong != nullptr) {
    problem = name + ": " + wrong;
    return false;
  }
  const auto& header = *reinterpret_cast<const Header*>(map.data());
  copy_header(header, out);
  copy_records(map, header, out);
  copy_settings(map, header, out);
  return true;
}

int ask_drill(const std::string& path, Drill drill, int patience_ms, std::string& problem) {
  const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0) {
    problem = path + ": " + strerror(errno);
    if (fd >= 0) close(fd);
    return -1;
  }
  const Mapping map(fd, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE);
  close(fd);
  if (const char* wrong = wrong_with(map); wrong != nullptr) {
    problem = path + ": " + wrong;
    return -1;
  }
  auto& header = *reinterpret_cast<Header*>(const_cast<char*>(map.data()));
  header.drill.store(static_cast<std::uint32_t>(drill), std::memory_order_relaxed);
  const std::uint32_t number = header.drills_done.load(std::memory_order_relaxed) + 1;
  header.drills_asked.store(number, std::memory_order_release);
  for (int waited = 0; waited <= patience_ms; waited++) {
    if (header.drills_done.load(std::memory_order_acquire) == number)
      return static_cast<int>(header.drill_result.load(std::memory_order_relaxed));
    usleep(1000);
  }
  return -1;
}

Listing read_run_dir(const std::string& path, std::int32_t pid) {
  Listing listing;
  std::string problem;
  const int directory = runtime::open_run_dir(path, false, problem);
  if (directory < 0) {
    if (errno != ENOENT) listing.problems.push_back(problem);
    return listing;
  }
  sweep_dead(directory);
  for (const std::string& name : stats_files(directory, pid)) {
    Snapshot snapshot;
    if (read_stats(directory, name, snapshot, problem)) {
      snapshot.path = path + "/" + name;
      listing.processes.push_back(std::move(snapshot));
    } else {
      listing.problems.push_back(path + "/" + problem);
    }
  }
  close(directory);
  std::sort(listing.processes.begin(), listing.processes.end(),
            [](const Snapshot& a, const Snapshot& b) { return a.pid < b.pid; });
  return listing;
}

}  // namespace bypass::observe
