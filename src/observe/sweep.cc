// The names of stats files, and the removal of those whose process has gone.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>

#include "observe/process_identity.h"
#include "observe/region.h"

namespace bypass::observe {
namespace {

constexpr std::string_view kSuffix = ".stats";
constexpr time_t kUnfinishedSeconds = 10;  // a file without magic that is this old was never finished

// The fixed front of the header, as pread reads it.
struct Front {
  std::uint64_t magic;
  std::uint32_t version, header_bytes;
  std::uint64_t file_bytes;
  std::int32_t pid;
  std::uint32_t uid;
  std::uint64_t start_time, pid_namespace;
};
static_assert(offsetof(Front, pid_namespace) == offsetof(Header, pid_namespace));

bool is_dead(int directory, const char* name, const ProcessIdentity& named) {
  const int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  Front front{};
  struct stat status {};
  const bool whole = pread(fd, &front, sizeof front, 0) == sizeof front && front.magic == kMagic;
  const bool known = fstat(fd, &status) == 0;
  close(fd);
  if (whole) return liveness({named.pid, named.start_time, front.pid_namespace}) == Liveness::kDead;
  return known && time(nullptr) - status.st_mtime > kUnfinishedSeconds && start_time_of(named.pid) != named.start_time;
}

}  // namespace

std::string file_name(std::int32_t pid, std::uint64_t start_time) {
  return std::to_string(pid) + "-" + std::to_string(start_time) + std::string(kSuffix);
}

bool parse_file_name(std::string_view name, std::int32_t& pid, std::uint64_t& start_time) {
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  const char* const last = name.data() + name.size();
  const auto [dash, pid_error] = std::from_chars(name.data(), last, pid);
  if (pid_error != std::errc{} || pid <= 0 || dash == last || *dash != '-') return false;
  const auto [end, time_error] = std::from_chars(dash + 1, last, start_time);
  return time_error == std::errc{} && end == last;
}

int sweep_dead(int directory) {
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = copy < 0 ? nullptr : fdopendir(copy);
  if (listing == nullptr) {
    if (copy >= 0) close(copy);
    return 0;
  }
  int swept = 0;
  while (const dirent* entry = readdir(listing)) {
    ProcessIdentity named;
    if (!parse_file_name(entry->d_name, named.pid, named.start_time)) continue;
    if (is_dead(directory, entry->d_name, named) && unlinkat(directory, entry->d_name, 0) == 0) swept++;
  }
  closedir(listing);
  return swept;
}

}  // namespace bypass::observe
