#include "runtime/family/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>
#include <utility>

#include "os/kernel.h"
#include "os/os.h"
#include "runtime/host.h"

namespace bypass::runtime::arena {

namespace {

/// One part in this many of the budget is kept for everything but bulk bytes.
constexpr std::size_t kKeptBack = 8;

constexpr std::size_t kBytes = std::size_t{64} << 30;
/// Under a limit on address space (RLIMIT_AS) the arena takes an eighth of the limit, and none if that is less than
/// kLeastBytes. The program needs the rest.
constexpr std::size_t kShareOfLimit = 8, kLeastBytes = std::size_t{64} << 20;
/// Memory's own tables, and what lies before them, take less than a ninth of the arena.
constexpr std::size_t kShareOfTables = 9;
/// The range lies between where programs are loaded and where libraries are, which is free in every ordinary process.
/// The place in it is drawn at random once for a family. So an attacker who can write somewhere does not know where the
/// arena is. It has 28 random bits, as the kernel's mmap() has.
constexpr std::uintptr_t kLeastAddress = 0x6000'0000'0000;
constexpr std::uint64_t kPlaces = std::uint64_t{1} << 28;
constexpr std::uint64_t kMagic = 0x414e455241594221;  // in the header of every arena
constexpr std::uint32_t kLayout = 3;                  // changes when anything in the arena does

struct Header {
  std::uint64_t magic;
  std::uint32_t layout;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  socket::FamilyTable family;
  socket::LockState lock;
  Spare spare;
};

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHeaderBytes = (sizeof(Header) + kPage - 1) & ~(kPage - 1);

void* g_base = nullptr;
std::size_t g_bytes = 0;
int g_memory = -1;
bool g_keeps_memory = false;

void close_memory() {
  if (g_memory < 0) return;
  own_descriptor(g_memory, false);
  socket::kernel->close(std::exchange(g_memory, -1));
}

/// Keeps or closes the descriptor of memory that is mapped.
void keep_memory(int fd) {
  close_memory();
  if (g_keeps_memory)
    g_memory = own_high(fd);
  else
    socket::kernel->close(fd);
}

std::string errno_text(const char* what) {
  return std::string("the arena (memory shared with forked processes): ") + what + ": " + strerror(errno);
}

/// The part of a limit that the program may use; `all` when there is no limit.
std::size_t soft_limit(decltype(RLIMIT_AS) resource, std::size_t all) {
  rlimit limit{};
  const bool limited = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<std::size_t>(limit.rlim_cur) : all;
}

/// ftruncate beyond RLIMIT_FSIZE would send SIGXFSZ to the program. A smaller file suffices if it holds the budget.
bool fit_file_size(std::size_t budget, std::string& problem) {
  const std::size_t limit = soft_limit(RLIMIT_FSIZE, g_bytes);
  if (limit >= g_bytes) return true;
  const std::size_t least = std::max(kLeastBytes, budget + budget / (kShareOfTables - 1));
  if (limit >= least) {
    g_bytes = limit & ~(kPage - 1);
    return true;
  }
  problem = "the arena (memory shared with forked processes): RLIMIT_FSIZE is " + std::to_string(limit) +
            " bytes; libbypass needs 'ulimit -f unlimited' (the file is sparse and lies in memory)";
  return false;
}

/// Without random numbers the kernel chooses the address. It also does so if the drawn address is in use.
void* drawn_address() {
  std::uint64_t number = 0;
  if (!os::fill_random(&number, sizeof number)) return nullptr;
  return reinterpret_cast<void*>(kLeastAddress + number % kPlaces * kPage);
}

void* map_reservation(std::size_t bytes) {
  void* base = mmap(drawn_address(), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

/// Maps the memory in place of whatever is there.
bool map_memory(int fd, std::string& problem) {
  bool mapped = false;
  if (mmap(g_base, g_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    problem = errno_text("mmap");
  } else if (munlock(g_base, g_bytes); mprotect(g_base, g_bytes, PROT_READ | PROT_WRITE) != 0) {
    // After mlockall(MCL_FUTURE), a mapping with access rights is filled at once, as a whole.
    problem = errno_text("mprotect");
  } else {
    madvise(g_base, g_bytes, MADV_DONTDUMP);
    mapped = true;
  }
  return mapped;
}

/// Copies a run of touched pages to the same place in the copy.
bool copy_run(int fd, const std::byte* from, std::size_t bytes) {
  auto offset = static_cast<off_t>(from - static_cast<const std::byte*>(g_base));
  while (bytes != 0) {
    const long written = os::call(SYS_pwrite64, fd, os::address(from), static_cast<long>(bytes), offset);
    if (written == -EINTR) continue;
    if (written < 0) errno = static_cast<int>(-written);
    if (written <= 0) return false;
    from += written;
    offset += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

/// Pages that nobody has touched stay a hole.
bool copy_touched(int fd, std::span<const std::byte> part) {
  constexpr std::size_t kAtOnce = 4096;
  static std::array<unsigned char, kAtOnce> is_there;
  const auto first = reinterpret_cast<std::uintptr_t>(part.data()) & ~(kPage - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(part.data()) + part.size() + kPage - 1) & ~(kPage - 1);
  for (std::uintptr_t at = first; at < end;) {
    const std::size_t pages = std::min((end - at) / kPage, kAtOnce);
    if (mincore(reinterpret_cast<void*>(at), pages * kPage, is_there.data()) != 0) return false;
    for (std::size_t i = 0; i < pages; i++) {
      std::size_t run = 0;
      while (i + run < pages && (is_there[i + run] & 1) != 0) run++;
      if (run != 0 && !copy_run(fd, reinterpret_cast<const std::byte*>(at + i * kPage), run * kPage)) return false;
      i += run;
    }
    at += pages * kPage;
  }
  return true;
}

}  // namespace

int make_memory(std::string& problem) {
  const int fd = memfd_create("bypass-arena", MFD_CLOEXEC);
  if (fd < 0) problem = errno_text("memfd_create");
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(g_bytes)) == 0) return fd;
  problem = errno_text("ftruncate");
  socket::kernel->close(fd);
  return -1;
}

void reserve() {
  g_bytes = kBytes;
  g_base = map_reservation(g_bytes);
  if (g_base == nullptr) {
    g_bytes = std::min(kBytes, soft_limit(RLIMIT_AS, 0) / kShareOfLimit) & ~(kLeastBytes - 1);
    if (g_bytes < kLeastBytes || (g_base = map_reservation(g_bytes)) == nullptr) return;
  }
  madvise(g_base, g_bytes, MADV_DONTDUMP);
}

bool reserve_at(std::span<const std::byte> addresses) {
  void* const wanted = const_cast<std::byte*>(addresses.data());
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void* const base = mmap(wanted, addresses.size(), PROT_NONE, kFlags, -1, 0);
  if (base == MAP_FAILED) return false;
  if (base != wanted) {  // before Linux 4.17 the address is a hint
    munmap(base, addresses.size());
    return false;
  }
  g_base = base;
  g_bytes = addresses.size();
  madvise(g_base, g_bytes, MADV_DONTDUMP);
  return true;
}

std::span<const std::byte> range() {
  return {static_cast<const std::byte*>(g_base), g_base == nullptr ? 0 : g_bytes};
}

std::size_t largest_budget() {
  return g_base == nullptr ? 0 : g_bytes - g_bytes / kShareOfTables;
}

Mapped* take(std::size_t budget, std::string& problem) {
  if (g_base == nullptr) {
    problem =
        "the arena (memory shared with forked processes): no address range could be reserved; is "
        "RLIMIT_AS (ulimit -v) set? 'unlimited' is accepted, or 512 MiB and more";
    return nullptr;
  }
  if (!fit_file_size(budget, problem)) return nullptr;
  const int fd = make_memory(problem);
  const bool is_mapped = fd >= 0 && map_memory(fd, problem);
  if (is_mapped)
    keep_memory(fd);  // the mapping keeps the memory without it
  else if (fd >= 0)
    socket::kernel->close(fd);
  if (!is_mapped) return nullptr;
  auto* header = static_cast<Header*>(g_base);
  header->layout = kLayout;
  header->header_bytes = kHeaderBytes;
  header->bytes = g_bytes;
  header->magic = kMagic;
  auto* family = new socket::Family();
  if (!family->attach(header->family)) {
    problem = "the arena (memory shared with forked processes): no process slot could be taken";
    return nullptr;
  }
  Memory* memory = Memory::create(static_cast<std::byte*>(g_base) + kHeaderBytes, g_bytes - kHeaderBytes, budget);
  if (memory != nullptr) memory->keep_back(budget / kKeptBack);
  return new Mapped{memory, *family, *new socket::ShardLock(header->lock, *family), header->spare};
}

void keep_descriptor(bool keeps) {
  g_keeps_memory = keeps;
}

int descriptor() {
  return g_memory;
}

void hide_descriptor() {
  if (g_memory >= 0) own_descriptor(g_memory, false);
}

void show_descriptor() {
  if (g_memory >= 0) own_descriptor(g_memory, true);
}

Mapped* take_up(int memory, Memory& heap, std::string& problem) {
  if (!map_memory(memory, problem)) {
    drop();
    return nullptr;
  }
  auto* const header = static_cast<Header*>(g_base);
  if (header->magic != kMagic || header->layout != kLayout || header->header_bytes != kHeaderBytes ||
      header->bytes != g_bytes) {
    problem = "the arena of the image before this one is another library's";
    drop();
    return nullptr;
  }
  auto* const family = new socket::Family();
  if (!family->attach(header->family)) {
    problem = "no slot of the family could be taken";
    drop();
    return nullptr;
  }
  g_memory = memory;
  own_descriptor(memory, true);
  return new Mapped{&heap, *family, *new socket::ShardLock(header->lock, *family), header->spare};
}

void disown(int memory, std::uint32_t slot) {
  const auto at = static_cast<off_t>(offsetof(Header, family) + offsetof(socket::FamilyTable, slots) +
                                     slot * sizeof(socket::ProcessSlot) + offsetof(socket::ProcessSlot, pid));
  const std::uint32_t nobody = socket::kNobody;
  os::call(SYS_pwrite64, memory, os::address(&nobody), sizeof nobody, at);
}

namespace {

/// A write beyond the limit would send SIGXFSZ to the program.
bool copy_fits(std::string& problem) {
  const bool fits = soft_limit(RLIMIT_FSIZE, g_bytes) >= g_bytes;
  if (!fits) problem = "RLIMIT_FSIZE forbids it";
  return fits;
}

bool copy_all(const Mapped& mapped, int memory, std::string& problem) {
  const std::span<const std::byte> header{static_cast<const std::byte*>(g_base), kHeaderBytes};
  const auto parts = {header, mapped.memory->tables(), mapped.memory->blocks()};
  if (std::all_of(parts.begin(), parts.end(), [memory](const auto& part) { return copy_touched(memory, part); }))
    return true;
  problem = errno_text("its copy");
  return false;
}

/// Pages that an earlier copy has touched, and this one has not, must be zero. A process that has mapped the memory
/// meanwhile keeps its mapping.
bool empty(int memory) {
  return fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(g_bytes)) == 0;
}

/// Makes a memfd with a copy of the touched pages; -1: `problem` says why it cannot.
int copy_arena(const Mapped& mapped, std::string& problem) {
  const int fd = copy_fits(problem) ? make_memory(problem) : -1;
  if (fd < 0 || copy_all(mapped, fd, problem)) return fd;
  socket::kernel->close(fd);
  return -1;
}

}  // namespace

bool copy_into(const Mapped& mapped, int memory, std::string& problem) {
  if (!copy_fits(problem)) return false;
  if (empty(memory)) return copy_all(mapped, memory, problem);
  problem = errno_text("what an earlier copy has left");
  return false;
}

namespace {

constexpr auto kMade = static_cast<off_t>(offsetof(Header, spare) + offsetof(Spare, made));

}  // namespace

std::uint32_t made_in(int memory) {
  std::uint32_t made = Spare::kAbandoned;
  const long n = os::call(SYS_pread64, memory, os::address(&made), sizeof made, kMade);
  return n == sizeof made ? made : std::uint32_t{Spare::kAbandoned};
}

void abandon(int memory) {
  const std::uint32_t made = Spare::kAbandoned;
  os::call(SYS_pwrite64, memory, os::address(&made), sizeof made, kMade);
}

void drop() {
  close_memory();
  mmap(g_base, g_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  madvise(g_base, g_bytes, MADV_DONTDUMP);
}

bool map(int memory, std::string& problem) {
  close_memory();
  if (map_memory(memory, problem)) return true;
  drop();
  return false;
}

bool renew(const Mapped& mapped, void (*leave)(const Mapped&), std::string& problem) {
  const int fd = copy_arena(mapped, problem);
  leave(mapped);
  const bool renewed = fd >= 0 && map_memory(fd, problem);
  if (renewed)
    keep_memory(fd);
  else if (fd >= 0)
    socket::kernel->close(fd);
  if (!renewed) drop();
  return renewed;
}

}  // namespace bypass::runtime::arena
