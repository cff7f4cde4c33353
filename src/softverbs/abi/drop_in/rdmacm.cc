// librdmacm.so.1, for LD_LIBRARY_PATH: connection management of the software devices for programs that load librdmacm
// themselves, and for all others without a preload. Every function is the system's library's. That library's own
// calls of libc about /dev/infiniband/rdma_cm become libbypass-softverbs.so's, which answers for the device
// (softverbs/abi/cm/intercept.cc). No other library's calls are changed.
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <utility>

#define BYPASS_NAMES "softverbs/abi/drop_in/rdmacm_names.inc"
#include "softverbs/abi/drop_in/forwarding.h"

namespace bypass::softverbs {
namespace {

/// The calls that librdmacm makes about its device's file.
constexpr const char* kCalls[] = {"open", "open64", "write", "close", "fstat", "fstat64"};

constexpr bool is_address_of_function(std::uint64_t type) {
#if defined(__x86_64__)
  return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
  return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
#endif
}

/// A loaded library's dynamic section (elf(5)).
class Dynamic {
 public:
  explicit Dynamic(const link_map& map) : map_(map) {}
  [[nodiscard]] std::uint64_t number(std::int64_t tag) const {
    for (const ElfW(Dyn)* each = map_.l_ld; each->d_tag != DT_NULL; each++)
      if (each->d_tag == tag) return each->d_un.d_val;
    return 0;
  }
  template <typename T>
  [[nodiscard]] const T* table(std::int64_t tag) const {
    const std::uint64_t at = number(tag);
    return at == 0 ? nullptr : reinterpret_cast<const T*>(at < map_.l_addr ? map_.l_addr + at : at);
  }

 private:
  const link_map& map_;
};

/// Writes to an address table that the loader has made read-only (RELRO), and makes it read-only again.
void write_slot(std::uintptr_t at, void* function) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* const start = reinterpret_cast<void*>(at & ~(page - 1));
  if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return;
  *reinterpret_cast<void**>(at) = function;
  mprotect(start, page, PROT_READ);
}

void redirect(const link_map& map, const char* name, void* function) {
  const Dynamic dynamic(map);
  const auto* const symbols = dynamic.table<ElfW(Sym)>(DT_SYMTAB);
  const auto* const texts = dynamic.table<char>(DT_STRTAB);
  for (const auto& [table, bytes] : {std::pair{DT_JMPREL, DT_PLTRELSZ}, std::pair{DT_RELA, DT_RELASZ}}) {
    const auto* const entries = dynamic.table<ElfW(Rela)>(table);
    const std::size_t count = entries == nullptr ? 0 : dynamic.number(bytes) / sizeof *entries;
    for (const ElfW(Rela) & entry : std::span(entries, count)) {
      const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(entry.r_info)];
      if (!is_address_of_function(ELF64_R_TYPE(entry.r_info)) || std::strcmp(texts + symbol.st_name, name) != 0)
        continue;
      write_slot(map.l_addr + entry.r_offset, function);
    }
  }
}

[[gnu::constructor]] void find_functions() {
  void* const real = open_real("librdmacm.so.1");
  void* const soft = open_soft();
  for (const Name& each : kNames) set_place(each, find_in(real, each));
  const link_map* const map = map_of(real);
  if (map == nullptr || soft == nullptr) return;
  for (const char* const call : kCalls)
    if (void* const ours = dlsym(soft, call); ours != nullptr) redirect(*map, call, ours);
}

}  // namespace
}  // namespace bypass::softverbs
