// libibverbs.so.1, for LD_LIBRARY_PATH: the software devices for programs that load libibverbs themselves (dlopen,
// dlvsym), which a preloaded library does not see. It has every name of the real library at its version. A name that
// libbypass-softverbs.so defines is that library's, any other is the real library's. The real one is loaded by its
// path. Drivers of cards, which need libibverbs.so.1 by name, find this one.
#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstring>

#ifndef BYPASS_LIBIBVERBS_FOLDER
#define BYPASS_LIBIBVERBS_FOLDER "/usr/lib"
#endif

extern "C" {
/// The functions' addresses, by their lines in names.inc.
__attribute__((visibility("hidden"))) std::array<void*, 256> bypass_places;
/// Data of the real library, which drivers read.
__attribute__((visibility("default"))) bool verbs_allow_disassociate_destroy;
}

// Each function is a jump to its address.
#define BYPASS_TEXT(x) #x
#if defined(__x86_64__)
#define BYPASS_JUMP(line) "endbr64\njmp *bypass_places+8*" BYPASS_TEXT(line) "(%rip)\n"
#elif defined(__aarch64__)
#define BYPASS_JUMP(line)                                                                                \
  "adrp x16, bypass_places+8*" BYPASS_TEXT(line) "\nldr x16, [x16, #:lo12:bypass_places+8*" BYPASS_TEXT( \
      line) "]\nbr x16\n"
#endif
#define BYPASS_FUNCTION(line, name, at, version) \
  __asm__(".text\n.p2align 4\n.globl bypass_at_" BYPASS_TEXT(line) "\n.type bypass_at_" BYPASS_TEXT(line)   \
          ", @function\nbypass_at_" BYPASS_TEXT(line) ":\n" BYPASS_JUMP(line) ".size bypass_at_" BYPASS_TEXT(line) \
          ", .-bypass_at_" BYPASS_TEXT(line) "\n.symver bypass_at_" BYPASS_TEXT(line) ", " #name at version          \
          ", remove\n");
#define BYPASS_NAME(line, name, at, version) BYPASS_FUNCTION(line, name, at, version)
#define NAME(name, at, version) BYPASS_NAME(__LINE__, name, at, version)
#include "softverbs/abi/drop_in/names.inc"
#undef NAME

namespace bypass::softverbs {
namespace {

struct Name {
  int line;
  const char *name, *version;
  bool is_default;
};
constexpr Name kNames[] = {
#define NAME(name, at, version) {__LINE__, #name, version, (at)[1] == '@'},
#include "softverbs/abi/drop_in/names.inc"
#undef NAME
};
static_assert(std::size(kNames) + 2 < std::tuple_size_v<decltype(bypass_places)>);

// What stands for a function that no library has: null, or 0.
void* absent() {
  return nullptr;
}

const link_map* map_of(void* library) {
  link_map* map = nullptr;
  return library != nullptr && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map : nullptr;
}

const char* own_path() {
  Dl_info own{};
  return dladdr(bypass_places.data(), &own) != 0 ? own.dli_fname : "";
}

// Null: there is none but this one.
void* open_real() {
  for (const char* const path :
       {BYPASS_LIBIBVERBS_FOLDER "/libibverbs.so.1", "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
        "/usr/lib/aarch64-linux-gnu/libibverbs.so.1", "/usr/lib64/libibverbs.so.1", "/usr/lib/libibverbs.so.1"}) {
    void* const library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    const link_map* const map = map_of(library);
    if (map != nullptr && std::strcmp(map->l_name, own_path()) != 0) return library;
  }
  return nullptr;
}

// libbypass-softverbs.so lies in the folder above.
void* open_soft() {
  std::array<char, 4096> path;
  const char* const own = own_path();
  const char* const slash = std::strrchr(own, '/');
  constexpr char kName[] = "../libbypass-softverbs.so";
  const std::size_t folder = slash == nullptr ? 0 : static_cast<std::size_t>(slash + 1 - own);
  if (folder + sizeof kName > path.size()) return nullptr;
  std::memcpy(path.data(), own, folder);
  std::memcpy(path.data() + folder, kName, sizeof kName);
  return dlopen(path.data(), RTLD_NOW | RTLD_LOCAL);
}

[[gnu::constructor]] void find_functions() {
  void* const real = open_real();
  void* const soft = open_soft();
  if (soft != nullptr) {
    using UseLibrary = void(void*);
    auto* const use = reinterpret_cast<UseLibrary*>(dlsym(soft, "bypass_softverbs_use_library"));
    if (use != nullptr) use(real);
  }
  for (const Name& each : kNames) {
    void* at = soft == nullptr || !each.is_default ? nullptr : dlvsym(soft, each.name, each.version);
    if (at == nullptr && real != nullptr) at = dlvsym(real, each.name, each.version);
    bypass_places[static_cast<std::size_t>(each.line)] = at != nullptr ? at : reinterpret_cast<void*>(absent);
  }
  const void* const flag = real == nullptr ? nullptr : dlsym(real, "verbs_allow_disassociate_destroy");
  if (flag != nullptr) verbs_allow_disassociate_destroy = *static_cast<const bool*>(flag);
}

}  // namespace
}  // namespace bypass::softverbs
