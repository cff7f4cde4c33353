#include "preload/raw/go_program.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <vector>

#include "os/os.h"

namespace bypass::preload::raw {
namespace {

template <typename Visit>
void visit_main_program(const Visit& visit) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t /*size*/, void* argument) {
        (*static_cast<const Visit*>(argument))(*info);
        return 1;  // the first is the main program: dl_iterate_phdr(3)
      },
      const_cast<Visit*>(&visit));
}

template <typename Visit>
void visit_headers(ElfW(Word) type, const Visit& visit) {
  visit_main_program([&](const dl_phdr_info& info) {
    for (unsigned i = 0; i < info.dlpi_phnum; i++)
      if (info.dlpi_phdr[i].p_type == type) visit(info, info.dlpi_phdr[i]);
  });
}

/// A note of the linker of Go: elf(5), "Notes"; its type is 4 (cmd/link: ELF_NOTE_GOBUILDID_TAG).
bool has_note_of_go(const char* at, std::size_t bytes) {
  constexpr std::size_t kName = 4;
  constexpr ElfW(Word) kBuildId = 4;
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    memcpy(&note, at, sizeof note);
    const auto rounded = [](std::size_t n) { return (n + 3) / 4 * 4; };
    const std::size_t whole = sizeof note + rounded(note.n_namesz) + rounded(note.n_descsz);
    if (whole > bytes) return false;
    if (note.n_type == kBuildId && note.n_namesz == kName && memcmp(at + sizeof note, "Go\0", kName) == 0) return true;
    at += whole;
    bytes -= whole;
  }
  return false;
}

/// What the dynamic linker is asked for: elf(5), "Dynamic tags". It has made the addresses absolute.
struct Dynamic {
  explicit Dynamic(const ElfW(Dyn) * each) {
    for (; each->d_tag != DT_NULL; each++) {
      if (each->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(each->d_un.d_ptr);
      if (each->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(each->d_un.d_ptr);
      if (each->d_tag == DT_RELA) relocations[0] = reinterpret_cast<const ElfW(Rela)*>(each->d_un.d_ptr);
      if (each->d_tag == DT_RELASZ) counts[0] = each->d_un.d_val / sizeof(ElfW(Rela));
      if (each->d_tag == DT_JMPREL) relocations[1] = reinterpret_cast<const ElfW(Rela)*>(each->d_un.d_ptr);
      if (each->d_tag == DT_PLTRELSZ) counts[1] = each->d_un.d_val / sizeof(ElfW(Rela));
    }
  }

  [[nodiscard]] bool asks_for(const char* name) const {
    if (symbols == nullptr || strings == nullptr) return false;
    for (std::size_t table = 0; table < relocations.size(); table++) {
      for (std::size_t i = 0; relocations[table] != nullptr && i < counts[table]; i++) {
        const auto symbol = ELF64_R_SYM(relocations[table][i].r_info);
        if (symbol != 0 && strcmp(strings + symbols[symbol].st_name, name) == 0) return true;
      }
    }
    return false;
  }

  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  std::array<const ElfW(Rela)*, 2> relocations{};
  std::array<std::size_t, 2> counts{};
};

// --- The table of functions

/// Where a section of the program's file lies in memory. Only the file has the sections' names.
std::span<const std::uint8_t> read_section(std::span<const std::string_view> names) {
  const auto fd = static_cast<int>(os::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return {};
  const auto read_at = [fd](void* to, std::size_t bytes, std::size_t offset) {
    return os::call(SYS_pread64, fd, os::address(to), static_cast<long>(bytes), static_cast<long>(offset)) ==
           static_cast<long>(bytes);
  };
  std::span<const std::uint8_t> found;
  ElfW(Ehdr) head{};
  std::vector<ElfW(Shdr)> sections;
  std::vector<char> strings;
  constexpr std::size_t kMostNames = 1 << 20;
  const bool is_read = [&] {
    if (!read_at(&head, sizeof head, 0) || head.e_shentsize != sizeof(ElfW(Shdr)) || head.e_shstrndx >= head.e_shnum)
      return false;
    sections.resize(head.e_shnum);
    if (!read_at(sections.data(), sections.size() * sizeof sections[0], head.e_shoff)) return false;
    const ElfW(Shdr)& table = sections[head.e_shstrndx];
    if (table.sh_size == 0 || table.sh_size > kMostNames) return false;
    strings.resize(table.sh_size + 1);
    return read_at(strings.data(), table.sh_size, table.sh_offset);
  }();
  os::close(fd);
  if (!is_read) return {};
  std::uintptr_t bias = 0;
  visit_main_program([&](const dl_phdr_info& info) { bias = info.dlpi_addr; });
  for (const ElfW(Shdr) & each : sections) {
    if (each.sh_name >= strings.size() || (each.sh_flags & SHF_ALLOC) == 0) continue;
    if (std::ranges::find(names, std::string_view(strings.data() + each.sh_name)) == names.end()) continue;
    found = {reinterpret_cast<const std::uint8_t*>(bias + each.sh_addr), each.sh_size};
  }
  return found;
}

/// The head of the table: runtime.pcHeader of Go 1.18 and later. Offsets are from its own begin.
struct Head {
  std::uint32_t magic;
  std::uint8_t zero[2];
  std::uint8_t least_instruction;
  std::uint8_t pointer_bytes;
  std::uint64_t functions, files;
  std::uint64_t text;
  std::uint64_t names, units, file_table, counters, lines;
};
/// What lies at `lines`: the functions in the order of their addresses, then one more address. Offsets of entries are
/// from `text`, the other's from `lines`.
struct Place {
  std::uint32_t entry, function;
};
struct Function {  // runtime._func
  std::uint32_t entry;
  std::int32_t name;
};
constexpr std::uint32_t kMagic118 = 0xfffffff0, kMagic120 = 0xfffffff1;

class Table {
 public:
  explicit Table(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  /// Null, or why the functions cannot be found.
  [[nodiscard]] const char* read() {
    if (!copy(head_, 0)) return "it has no table of its functions";
    if (head_.magic != kMagic118 && head_.magic != kMagic120)
      return "its table of functions is of another version of Go than 1.18 and later";
    if (head_.pointer_bytes != sizeof(void*) || head_.text == 0 || head_.names >= bytes_.size())
      return "its table of functions has another form";
    if (head_.lines >= bytes_.size() || head_.functions > (bytes_.size() - head_.lines) / sizeof(Place))
      return "its table of functions is cut short";
    return nullptr;
  }

  /// Calls `visit(name, code)` for each function.
  template <typename Visit>
  void visit(const Visit& visit) const {
    const auto at = [this](std::uint32_t offset) {
      return reinterpret_cast<const std::uint8_t*>(static_cast<std::uintptr_t>(head_.text + offset));
    };
    for (std::uint64_t i = 0; i < head_.functions; i++) {
      Place place{}, next{};
      Function function{};
      if (!copy(place, head_.lines + i * sizeof place) || !copy(function, head_.lines + place.function)) continue;
      if (!copy(next.entry, head_.lines + (i + 1) * sizeof place) || next.entry <= place.entry) continue;
      visit(name_at(head_.names + static_cast<std::uint64_t>(function.name)),
            std::span<const std::uint8_t>(at(place.entry), next.entry - place.entry));
    }
  }

 private:
  template <typename T>
  [[nodiscard]] bool copy(T& to, std::uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof to) return false;
    memcpy(&to, bytes_.data() + offset, sizeof to);
    return true;
  }
  [[nodiscard]] std::string_view name_at(std::uint64_t offset) const {
    if (offset >= bytes_.size()) return {};
    const auto* const name = reinterpret_cast<const char*>(bytes_.data() + offset);
    return {name, strnlen(name, std::min<std::size_t>(bytes_.size() - offset, 64))};
  }

  std::span<const std::uint8_t> bytes_;
  Head head_{};
};

}  // namespace

bool is_go_program() {
  bool found = false;
  visit_headers(PT_NOTE, [&](const dl_phdr_info& info, const ElfW(Phdr) & header) {
    found = found || has_note_of_go(reinterpret_cast<const char*>(info.dlpi_addr + header.p_vaddr), header.p_memsz);
  });
  return found;
}

bool has_threads_of_c() {
  bool found = false;
  visit_headers(PT_DYNAMIC, [&](const dl_phdr_info& info, const ElfW(Phdr) & header) {
    const Dynamic dynamic(reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + header.p_vaddr));
    found = dynamic.asks_for("pthread_create");
  });
  return found;
}

const char* visit_functions(std::span<const std::string_view> names, const VisitCode& visit) {
  static constexpr std::array<std::string_view, 2> kSections{".gopclntab", ".data.rel.ro.gopclntab"};
  Table table(read_section(kSections));
  if (const char* const problem = table.read()) return problem;
  bool understood = true;
  table.visit([&](std::string_view name, std::span<const std::uint8_t> code) {
    if (std::ranges::find(names, name) != names.end()) understood = visit(name, code) && understood;
  });
  return understood ? nullptr : "its runtime makes system calls in a form that is not known";
}

}  // namespace bypass::preload::raw
