#include "preload/own_descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdint>

#include "os/os.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

struct DirectoryEntry {  // what getdents64 fills in
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[];
};

int number_of(const char* name) {
  int number = 0;
  for (; *name >= '0' && *name <= '9'; name++) number = number * 10 + (*name - '0');
  return *name == 0 ? number : -1;
}

// Calls `visit` for every open descriptor. False if /proc is missing.
template <typename Visit>
bool visit_open_descriptors(Visit visit) {
  long directory = os::call(SYS_open, reinterpret_cast<long>("/proc/self/fd"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return false;
  alignas(DirectoryEntry) char buffer[2048] = {};
  long length;
  while ((length = os::call(SYS_getdents64, directory, reinterpret_cast<long>(buffer), sizeof(buffer))) > 0) {
    for (long at = 0; at < length;) {
      auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      if (int fd = number_of(entry->name); entry->name[0] != '.' && fd != directory) visit(fd);
      at += entry->length;
    }
  }
  os::call(SYS_close, directory);
  return true;
}

// Without /proc: visits the numbers that may be open.
template <typename Visit>
void visit_possible_descriptors(Visit visit) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  int end = static_cast<int>(std::min<rlim_t>(limit.rlim_max, 1 << 20));
  for (int fd = 0; fd < end; fd++) visit(fd);
}

}  // namespace

int end_of_programs_table() {
  int highest = 0;
  const auto look = [&](int fd) {
    if (!runtime::owns_descriptor(fd)) highest = std::max(highest, fd);
  };
  return visit_open_descriptors(look) ? (highest / 64 + 1) * 64 : FD_SETSIZE;
}

int close_around_own(unsigned first, unsigned last, int flags) {
  unsigned own_lowest = UINT32_MAX, own_highest = 0;
  auto look = [&](int fd) {
    auto number = static_cast<unsigned>(fd);
    if (number < first || number > last || !runtime::owns_descriptor(fd)) return;
    own_lowest = std::min(own_lowest, number);
    own_highest = std::max(own_highest, number);
  };
  if (has_started() && !visit_open_descriptors(look)) visit_possible_descriptors(look);
  if (own_lowest == UINT32_MAX) return real.close_range(first, last, flags);
  // Our descriptors lie close together above the program's: two ranges are closed at once, and the numbers between one
  // by one.
  if (own_lowest > first && real.close_range(first, own_lowest - 1, flags) != 0) return -1;
  for (unsigned fd = own_lowest; fd <= own_highest; fd++) {
    if (!runtime::owns_descriptor(static_cast<int>(fd))) real.close(static_cast<int>(fd));
  }
  return own_highest < last ? real.close_range(own_highest + 1, last, flags) : 0;
}

}  // namespace bypass::preload
