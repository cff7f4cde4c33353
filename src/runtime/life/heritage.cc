#include "runtime/life/heritage.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstring>
#include <string_view>

#include "os/os.h"

namespace bypass::runtime {

namespace {

constexpr std::uint64_t kMagic = 0x5445'4749'5245'4821;
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr std::uint32_t kMostNumbers = 1U << 20;

bool write_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes != 0) {
    const long n = os::call(SYS_write, fd, os::address(at), static_cast<long>(bytes));
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t bytes, std::size_t from) {
  const long n = os::call(SYS_pread64, fd, os::address(static_cast<char*>(data)), static_cast<long>(bytes),
                          static_cast<long>(from));
  return n == static_cast<long>(bytes);
}

/// Whether this user has made the memory, and nobody can change it.
bool is_sealed(int fd) {
  struct stat about {};
  return os::call(SYS_fcntl, fd, F_GET_SEALS) == kSeals && os::call(SYS_fstat, fd, os::address(&about)) == 0 &&
         about.st_uid == static_cast<std::uint32_t>(os::call(SYS_geteuid));
}

/// The first bytes of the build id (ld(1), --build-id) of the object that has this function.
int find_build_id(dl_phdr_info* object, std::size_t, void* found) {
  const auto here = reinterpret_cast<std::uintptr_t>(&find_build_id);
  const std::span<const ElfW(Phdr)> parts(object->dlpi_phdr, object->dlpi_phnum);
  bool is_ours = false;
  for (const ElfW(Phdr) & part : parts) {
    const std::uintptr_t from = object->dlpi_addr + part.p_vaddr;
    is_ours = is_ours || (part.p_type == PT_LOAD && here >= from && here - from < part.p_memsz);
  }
  if (!is_ours) return 0;
  for (const ElfW(Phdr) & part : parts) {
    if (part.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(object->dlpi_addr + part.p_vaddr);
    const char* const end = at + part.p_memsz;
    while (end - at >= static_cast<std::ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* const name = at + sizeof note;
      const char* const text = name + ((note.n_namesz + 3U) & ~3U);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0 &&
          note.n_descsz >= sizeof(std::uint64_t))
        std::memcpy(found, text, sizeof(std::uint64_t));
      at = text + ((note.n_descsz + 3U) & ~3U);
    }
  }
  return 1;
}

}  // namespace

std::uint64_t library_identity() {
  std::uint64_t found = 0;
  dl_iterate_phdr(find_build_id, &found);
  return found;
}

int write_heritage(HeritageHead head, std::span<const HandedNumber> numbers,
                   std::span<const std::int32_t> descriptors) {
  head.magic = kMagic;
  head.bytes = sizeof head;
  head.count = static_cast<std::uint32_t>(numbers.size());
  head.descriptors = static_cast<std::uint32_t>(descriptors.size());
  const auto fd =
      static_cast<int>(os::call(SYS_memfd_create, os::address("bypass-heritage"), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return fd;
  if (write_all(fd, &head, sizeof head) && write_all(fd, numbers.data(), numbers.size_bytes()) &&
      write_all(fd, descriptors.data(), descriptors.size_bytes()) && os::call(SYS_fcntl, fd, F_ADD_SEALS, kSeals) == 0)
    return fd;
  os::close(fd);
  return -1;
}

std::optional<Heritage> read_heritage(int fd) {
  Heritage read;
  HeritageHead& head = read.head;
  if (!is_sealed(fd) || !read_all(fd, &head, sizeof head, 0)) return std::nullopt;
  if (head.magic != kMagic || head.bytes != sizeof head || head.count > kMostNumbers || head.descriptors > kMostNumbers)
    return std::nullopt;
  if (head.pid != os::getpid() || head.start_time == 0 || head.start_time != os::start_time_of(head.pid))
    return std::nullopt;
  read.numbers.resize(head.count);
  read.descriptors.resize(head.descriptors);
  const std::size_t bytes = head.count * sizeof(HandedNumber);
  const bool whole =
      read_all(fd, read.numbers.data(), bytes, sizeof head) &&
      read_all(fd, read.descriptors.data(), head.descriptors * sizeof(std::int32_t), sizeof head + bytes);
  os::close(fd);
  if (!whole) return std::nullopt;
  return read;
}

namespace {

/// Takes the variables out that `takes` names.
template <typename Takes>
void take_out(char** environment, const Takes& takes) {
  char** kept = environment;
  for (char** each = environment; each != nullptr && *each != nullptr; each++)
    if (!takes(*each)) *kept++ = *each;
  if (kept != nullptr) *kept = nullptr;
}

bool begins(const char* text, std::string_view with) {
  return std::strncmp(text, with.data(), with.size()) == 0;
}

}  // namespace

int take_heritage_number(char** environment, Added& added) {
  int number = -1;
  take_out(environment, [&](const char* entry) {
    if (!begins(entry, kHeritageVariable)) return false;
    const char* digit = entry + sizeof kHeritageVariable - 1;
    for (number = 0; *digit >= '0' && *digit <= '9' && number < 1 << 24; digit++) number = 10 * number + (*digit - '0');
    for (; *digit != 0; digit++) {
      added.preload = added.preload || *digit == kAddedPreload;
      added.settings = added.settings || *digit == kAddedSettings;
    }
    return true;
  });
  return number;
}

void take_added_out(char** environment, const Added& added) {
  take_out(environment, [&](const char* entry) {
    return (added.preload && begins(entry, "LD_PRELOAD=")) || (added.settings && begins(entry, "BYPASS_"));
  });
}

}  // namespace bypass::runtime
