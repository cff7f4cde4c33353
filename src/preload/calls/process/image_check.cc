#include "preload/calls/process/image_check.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "os/memory_maps.h"
#include "os/os.h"
#include "runtime/life/next_image.h"

namespace bypass::preload {

namespace {

struct Descriptor {
  explicit Descriptor(const char* path) : fd(static_cast<int>(os::open(path, O_RDONLY | O_CLOEXEC))) {}
  ~Descriptor() {
    if (fd >= 0) os::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

std::string read_text(const char* path) {
  const Descriptor file(path);
  std::string text;
  std::array<char, 4096> part;
  long n = 0;
  while (file.fd >= 0 && (n = os::read(file.fd, part.data(), part.size())) > 0)
    text.append(part.data(), static_cast<std::size_t>(n));
  return text;
}

// --- The library

bool is_same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// The file that this library was loaded from; "": it is not there any more, or another one has its place.
std::string find_library(struct stat& about) {
  const auto here = reinterpret_cast<std::uintptr_t>(&find_library);
  std::string path;
  const std::string maps = os::read_memory_maps();
  os::for_each_mapping(maps, [&](const os::MemoryMapping& mapping) {
    if (here >= mapping.begin && here < mapping.end) path = mapping.name;
    return path.empty();
  });
  const bool is_there = !path.empty() && stat(path.c_str(), &about) == 0;
  return is_there ? path : "";
}

bool names(std::string_view list, const struct stat& library) {
  while (!list.empty()) {
    const std::size_t end = list.find_first_of(" :\n\t");
    const std::string one(list.substr(0, end));
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
    struct stat about {};
    if (one.find('/') != std::string::npos && stat(one.c_str(), &about) == 0 && is_same_file(about, library))
      return true;
  }
  return false;
}

const char* value_in(char* const* environment, std::string_view name) {
  for (; environment != nullptr && *environment != nullptr; environment++)
    if (strncmp(*environment, name.data(), name.size()) == 0 && (*environment)[name.size()] == '=')
      return *environment + name.size() + 1;
  return nullptr;
}

bool is_preloaded_everywhere(const struct stat& library) {
  return names(read_text("/etc/ld.so.preload"), library);
}

/// An empty one is there on purpose.
bool has_no_preload(char* const* environment) {
  return value_in(environment, "LD_PRELOAD") == nullptr;
}

bool loads_library(char* const* environment) {
  struct stat library {};
  if (find_library(library).empty()) return false;
  return has_no_preload(environment) || names(value_in(environment, "LD_PRELOAD"), library) ||
         is_preloaded_everywhere(library);
}

bool has(const char* const* entries, std::string_view wanted) {
  for (; *entries != nullptr; entries++)
    if (wanted == *entries) return true;
  return false;
}

std::size_t count_settings(const char* const* environment) {
  constexpr std::string_view kPrefix = "BYPASS_";
  std::size_t count = 0;
  for (; environment != nullptr && *environment != nullptr; environment++)
    count += std::string_view(*environment).starts_with(kPrefix) ? 1U : 0U;
  return count;
}

/// The settings must be the same, as the arena was made by them. Where there are none, ours are added.
bool has_same_settings(char* const* environment) {
  const char* const* const ours = runtime::environment_at_load();
  const std::size_t theirs = count_settings(environment);
  if (theirs == 0) return true;
  for (const char* const* each = ours; *each != nullptr; each++)
    if (!has(environment, *each)) return false;
  return theirs == count_settings(ours);
}

// --- The rights

std::uint64_t mask_in(std::string_view status, std::string_view name) {
  const std::size_t at = status.find(name);
  if (at == std::string_view::npos) return 0;
  return strtoull(status.data() + at + name.size(), nullptr, 16);
}

/// Whether exec leaves the process the rights that it has (capabilities(7), "Transformation of capabilities during
/// execve()").
bool keeps_rights() {
  std::array<uid_t, 3> users{};
  std::array<gid_t, 3> groups{};
  if (getresuid(&users[0], &users[1], &users[2]) != 0 || getresgid(&groups[0], &groups[1], &groups[2]) != 0)
    return false;
  const auto is_other = [](const auto& ids) { return ids[0] != ids[1] || ids[0] != ids[2]; };
  if (is_other(users) || is_other(groups)) return false;
  const std::string status = read_text("/proc/self/status");
  const std::uint64_t permitted = mask_in(status, "\nCapPrm:\t");
  const bool root = users[0] == 0;
  const std::uint64_t after =
      root ? mask_in(status, "\nCapInh:\t") | mask_in(status, "\nCapBnd:\t") : mask_in(status, "\nCapAmb:\t");
  constexpr int kGetSecureBits = 27;  // PR_GET_SECUREBITS
  return os::call(SYS_prctl, kGetSecureBits) == 0 && permitted == after;
}

bool raises_rights(int fd) {
  struct stat about {};
  if (fstat(fd, &about) != 0 || (about.st_mode & (S_ISUID | S_ISGID)) != 0) return true;
  return fgetxattr(fd, "security.capability", nullptr, 0) >= 0;
}

// --- The file

std::string interpreter_of_elf(int fd, const ElfW(Ehdr) & head) {
  for (unsigned i = 0; i < head.e_phnum && head.e_phentsize == sizeof(ElfW(Phdr)); i++) {
    ElfW(Phdr) part;
    const auto at = static_cast<off_t>(head.e_phoff + i * sizeof part);
    if (pread(fd, &part, sizeof part, at) != static_cast<ssize_t>(sizeof part)) return "";
    if (part.p_type != PT_INTERP || part.p_filesz == 0 || part.p_filesz > 4096) continue;
    std::string name(part.p_filesz, '\0');
    if (pread(fd, name.data(), name.size(), static_cast<off_t>(part.p_offset)) != static_cast<ssize_t>(name.size()))
      return "";
    return name.c_str();
  }
  return "";
}

/// This program's own, by which the library was loaded.
std::string our_interpreter() {
  const Descriptor self("/proc/self/exe");
  ElfW(Ehdr) head;
  if (self.fd < 0 || pread(self.fd, &head, sizeof head, 0) != static_cast<ssize_t>(sizeof head)) return "";
  return interpreter_of_elf(self.fd, head);
}

bool is_elf(const ElfW(Ehdr) & head) {
  return memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_ident[EI_CLASS] == ELFCLASS64 &&
         head.e_machine == EM_X86_64 && (head.e_type == ET_EXEC || head.e_type == ET_DYN);
}

std::string interpreter_of_script(std::string_view head) {
  head.remove_prefix(2);
  head = head.substr(0, head.find('\n'));
  while (!head.empty() && (head.front() == ' ' || head.front() == '\t')) head.remove_prefix(1);
  return std::string(head.substr(0, head.find_first_of(" \t")));
}

constexpr int kMostInterpreters = 4;  // the kernel's bound is 5 (exec_binprm())
constexpr ImageCheck kFails{"it cannot be executed", true};

ImageCheck check_file(const char* path, int depth) {
  if (access(path, X_OK) != 0) return kFails;
  const Descriptor file(path);
  if (file.fd < 0) return {"its file cannot be read"};
  if (raises_rights(file.fd)) return {"it gets more rights"};
  std::array<char, 256> head{};
  const ssize_t n = pread(file.fd, head.data(), head.size(), 0);
  if (n > 2 && head[0] == '#' && head[1] == '!') {
    const std::string interpreter = interpreter_of_script({head.data(), static_cast<std::size_t>(n)});
    if (depth == kMostInterpreters) return {"it is a script of a script"};
    return check_file(interpreter.c_str(), depth + 1);
  }
  ElfW(Ehdr) elf;
  memcpy(&elf, head.data(), sizeof elf);
  if (n < static_cast<ssize_t>(sizeof elf) || !is_elf(elf)) return {"its file is of another kind"};
  const std::string interpreter = interpreter_of_elf(file.fd, elf);
  if (interpreter.empty()) return {"it is linked statically"};
  if (access(interpreter.c_str(), X_OK) != 0) return kFails;
  return {interpreter == our_interpreter() ? nullptr : "it has another dynamic linker"};
}

bool has_address_limit() {
  rlimit limit{};
  return os::call(SYS_prlimit64, 0, RLIMIT_AS, 0, os::address(&limit)) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

ImageCheck check_image(const char* file, char* const* environment) {
  const ImageCheck found = check_file(file, 0);
  if (found.why_not != nullptr) return found;
  if (!keeps_rights()) return {"exec changes the rights of the process"};
  if (has_address_limit()) return {"the address space is limited"};
  if (!loads_library(environment)) return {"it does not load the library"};
  if (!has_same_settings(environment)) return {"it has other settings"};
  return {};
}

std::vector<std::string> missing_variables(char* const* environment) {
  std::vector<std::string> missing;
  struct stat library {};
  const std::string path = find_library(library);
  if (has_no_preload(environment) && !is_preloaded_everywhere(library)) missing.push_back("LD_PRELOAD=" + path);
  if (count_settings(environment) != 0) return missing;
  for (const char* const* each = runtime::environment_at_load(); *each != nullptr; each++) missing.emplace_back(*each);
  return missing;
}

}  // namespace bypass::preload
