#include "program_file.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "config/settings_text.h"

namespace bypass::tool {
namespace {

// The beginning of the file, by which exec and the dynamic linker go.
class FileHead {
 public:
  explicit FileHead(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const ssize_t got = read(fd, bytes_.data(), bytes_.size());
    close(fd);
    size_ = got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  [[nodiscard]] std::string_view text() const { return {bytes_.data(), size_}; }
  template <typename T>
  [[nodiscard]] bool get(std::size_t offset, T& out) const {
    if (offset > size_ || size_ - offset < sizeof out) return false;
    std::memcpy(&out, bytes_.data() + offset, sizeof out);
    return true;
  }

 private:
  std::array<char, 4096> bytes_{};  // program headers lie behind the ELF header, everywhere
  std::size_t size_ = 0;
};

/// What a shared library tells the dynamic linker about itself.
class DynamicSection {
 public:
  explicit DynamicSection(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    Elf64_Ehdr elf{};
    if (!get(0, elf)) return;
    for (std::size_t i = 0; i < elf.e_phnum; i++) {
      Elf64_Phdr segment{};
      if (!get(elf.e_phoff + i * sizeof segment, segment)) return;
      if (segment.p_type == PT_LOAD) loaded_.push_back(segment);
      if (segment.p_type == PT_DYNAMIC) dynamic_ = segment;
    }
  }
  ~DynamicSection() { close(fd_); }
  DynamicSection(const DynamicSection&) = delete;
  DynamicSection& operator=(const DynamicSection&) = delete;

  [[nodiscard]] bool find(Elf64_Sxword tag, std::uint64_t& value) const {
    Elf64_Dyn entry{};
    for (std::uint64_t at = 0; at < dynamic_.p_filesz && get(dynamic_.p_offset + at, entry); at += sizeof entry) {
      if (entry.d_tag == tag) return value = entry.d_un.d_val, true;
      if (entry.d_tag == DT_NULL) break;
    }
    return false;
  }
  /// The text at an address in the process.
  [[nodiscard]] std::string text_at(std::uint64_t address) const {
    std::array<char, 256> text{};
    for (const Elf64_Phdr& segment : loaded_)
      if (address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz)
        (void)!pread(fd_, text.data(), text.size() - 1,
                     static_cast<off_t>(address - segment.p_vaddr + segment.p_offset));
    return text.data();
  }

 private:
  template <typename T>
  bool get(std::uint64_t offset, T& out) const {
    return pread(fd_, &out, sizeof out, static_cast<off_t>(offset)) == sizeof out;
  }
  int fd_;
  Elf64_Phdr dynamic_{};
  std::vector<Elf64_Phdr> loaded_;
};

// The interpreter that the kernel would start, such as in "#!/usr/bin/env python3".
std::string interpreter_of(std::string_view head) {
  if (!head.starts_with("#!")) return "";
  const auto words = runtime::split_words(head.substr(2, head.find('\n') - 2));
  return words.empty() ? "" : std::string(words[0]);
}

bool is_dynamic(const FileHead& head, const Elf64_Ehdr& elf) {
  for (std::size_t i = 0; i < elf.e_phnum; i++) {
    Elf64_Phdr segment;
    if (!head.get(elf.e_phoff + i * elf.e_phentsize, segment)) return true;  // not known: the dynamic linker may try
    if (segment.p_type == PT_INTERP) return true;
  }
  return false;
}

// See ld.so(8), secure-execution mode.
std::string privilege_problem(const std::string& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return "";
  if ((file.st_mode & S_ISUID) != 0 && file.st_uid != getuid()) return "is setuid: it runs as another user";
  if ((file.st_mode & S_ISGID) != 0 && file.st_gid != getgid()) return "is setgid: it runs with another group";
  const bool has_capabilities = getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
  return has_capabilities && getuid() != 0 ? "gives itself capabilities" : "";
}

ProgramFile check(const std::string& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0)
    return {"", fmt::format("{}: {}", path, std::strerror(errno)), errno == ENOENT ? kNotThere : kCannotRun};
  if (S_ISDIR(file.st_mode)) return {"", path + " is a folder", kCannotRun};
  if (access(path.c_str(), X_OK) != 0) return {"", path + " is not executable", kCannotRun};
  return {path, "", 0};
}

}  // namespace

ProgramFile find_program(const std::string& name, const char* search) {
  if (name.empty()) return {"", "there is no program ''", kNotThere};
  if (name.find('/') != std::string::npos) return check(name);
  ProgramFile seen{"", fmt::format("there is no program {} in PATH", name), kNotThere};
  for (const std::string_view folder :
       runtime::split(search != nullptr ? search : "/usr/local/bin:/usr/bin:/bin", ':')) {
    const ProgramFile found = check(fmt::format("{}/{}", folder.empty() ? "." : folder, name));
    if (!found.path.empty()) return found;
    if (found.exit_code == kCannotRun && seen.exit_code == kNotThere) seen = found;
  }
  return seen;
}

bool is_shared_object(const std::string& path) {
  const FileHead head(path);
  Elf64_Ehdr elf;
  return head.get(0, elf) && std::memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0 && elf.e_ident[EI_CLASS] == ELFCLASS64 &&
         elf.e_type == ET_DYN;
}

std::string soname_of(const std::string& path) {
  const DynamicSection section(path);
  std::uint64_t strings = 0, name = 0;
  if (!section.find(DT_STRTAB, strings) || !section.find(DT_SONAME, name)) return "";
  return section.text_at(strings + name);
}

std::string preload_problem(const std::string& path) {
  const FileHead head(path);
  if (const std::string interpreter = interpreter_of(head.text()); !interpreter.empty() && interpreter != path) {
    const std::string problem = FileHead(interpreter).text().starts_with("#!") ? "" : preload_problem(interpreter);
    return problem.empty() ? "" : fmt::format("its interpreter {}", problem);
  }
  if (const std::string problem = privilege_problem(path); !problem.empty())
    return fmt::format("{} {}, and the dynamic linker preloads nothing into such programs", path, problem);
  Elf64_Ehdr elf;
  if (!head.get(0, elf) || std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0) return "";
  if (elf.e_ident[EI_CLASS] != ELFCLASS64) return path + " is a 32-bit program, and the library is a 64-bit one";
  if (!is_dynamic(head, elf)) return path + " is statically linked: there is no dynamic linker to preload anything";
  return "";
}

}  // namespace bypass::tool
