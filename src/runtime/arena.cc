#include "runtime/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "runtime/host.h"
#include "socket/kernel.h"

namespace bypass::runtime::arena {

namespace {

/// Of the budget, the part that bytes in bulk leave to all else.
constexpr std::size_t kKeptBack = 8;

constexpr std::size_t kBytes = std::size_t{64} << 30;
/// Under a limit on address space (RLIMIT_AS) the program needs the rest of it: an eighth is ours, if that is enough
/// for anything.
constexpr std::size_t kShareOfLimit = 8, kLeastBytes = std::size_t{64} << 20;
/// Memory's own tables, and what lies before them, take less than a ninth of the arena.
constexpr std::size_t kShareOfTables = 9;
/// Between where programs are loaded and where libraries are: free in every ordinary process, so that an
/// exec'd image can take the same range up again.
constexpr std::uintptr_t kPreferred = 0x6000'0000'0000;
constexpr std::uint64_t kMagic = 0x414e455241594221;  // in the header of every arena
constexpr std::uint32_t kLayout = 1;                  // changes when anything in the arena does

struct Header {
  std::uint64_t magic;
  std::uint32_t layout;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  socket::FamilyTable family;
  socket::LockState lock;
};

void* g_base = nullptr;
std::size_t g_bytes = 0;

std::string errno_text(const char* what) {
  return std::string("the arena (memory shared with forked processes): ") + what + ": " + strerror(errno);
}

/// What the program may have of a limit; `all` when there is none.
std::size_t soft_limit(decltype(RLIMIT_AS) resource, std::size_t all) {
  rlimit limit{};
  const bool limited = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<std::size_t>(limit.rlim_cur) : all;
}

/// ftruncate beyond RLIMIT_FSIZE sends SIGXFSZ to the program: a smaller file will do if it holds the budget.
bool fit_file_size(std::size_t budget, std::string& problem) {
  const std::size_t limit = soft_limit(RLIMIT_FSIZE, g_bytes);
  if (limit >= g_bytes) return true;
  constexpr std::size_t kPage = 4096;
  const std::size_t least = std::max(kLeastBytes, budget + budget / (kShareOfTables - 1));
  if (limit >= least) {
    g_bytes = limit & ~(kPage - 1);
    return true;
  }
  problem = "the arena (memory shared with forked processes): RLIMIT_FSIZE is " + std::to_string(limit) +
            " bytes; libbypass needs 'ulimit -f unlimited' (the file is sparse and lies in memory)";
  return false;
}

void* map_reservation(std::size_t bytes) {
  void* base =
      mmap(reinterpret_cast<void*>(kPreferred), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

bool map_memory(std::string& problem) {
  const int fd = memfd_create("bypass-arena", MFD_CLOEXEC);
  if (fd < 0) {
    problem = errno_text("memfd_create");
    return false;
  }
  bool mapped = false;
  if (ftruncate(fd, static_cast<off_t>(g_bytes)) != 0) {
    problem = errno_text("ftruncate");
  } else if (mmap(g_base, g_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    problem = errno_text("mmap");
  } else if (munlock(g_base, g_bytes); mprotect(g_base, g_bytes, PROT_READ | PROT_WRITE) != 0) {
    // After mlockall(MCL_FUTURE) a mapping that may be touched is filled at once, all of it.
    problem = errno_text("mprotect");
  } else {
    madvise(g_base, g_bytes, MADV_DONTDUMP);
    mapped = true;
  }
  socket::kernel->close(fd);  // the mapping keeps the memory
  return mapped;
}

}  // namespace

void reserve() {
  g_bytes = kBytes;
  g_base = map_reservation(g_bytes);
  if (g_base == nullptr) {
    g_bytes = std::min(kBytes, soft_limit(RLIMIT_AS, 0) / kShareOfLimit) & ~(kLeastBytes - 1);
    if (g_bytes < kLeastBytes || (g_base = map_reservation(g_bytes)) == nullptr) return;
  }
  madvise(g_base, g_bytes, MADV_DONTDUMP);
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
  if (!fit_file_size(budget, problem) || !map_memory(problem)) return nullptr;
  auto* header = static_cast<Header*>(g_base);
  constexpr std::size_t kHeaderBytes = (sizeof(Header) + 4095) & ~std::size_t{4095};
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
  return new Mapped{memory, *family, *new socket::ShardLock(header->lock, *family)};
}

}  // namespace bypass::runtime::arena
