// What the drop-in libraries share: each of their functions is a jump to the address that a place of a table holds, and
// the table is filled when the library is loaded. To be included once in a library, which has defined BYPASS_NAMES: the
// file with its names.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <tuple>

#ifndef BYPASS_LIBIBVERBS_FOLDER
#define BYPASS_LIBIBVERBS_FOLDER "/usr/lib"
#endif

extern "C" {
/// The functions' addresses, by their lines in the file of names.
inline __attribute__((visibility("hidden"))) std::array<void*, 256> bypass_places;
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
#include BYPASS_NAMES
#undef NAME

namespace bypass::softverbs {

struct Name {
  int line;
  const char *name, *version;
  bool is_default;
};
constexpr Name kNames[] = {
#define NAME(name, at, version) {__LINE__, #name, version, (at)[1] == '@'},
#include BYPASS_NAMES
#undef NAME
};
static_assert(std::size(kNames) + 2 < std::tuple_size_v<decltype(bypass_places)>);

/// What stands for a function that no library has: null, or 0.
inline void* absent() {
  return nullptr;
}

inline const link_map* map_of(void* library) {
  link_map* map = nullptr;
  return library != nullptr && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map : nullptr;
}

inline const char* own_path() {
  Dl_info own{};
  return dladdr(bypass_places.data(), &own) != 0 ? own.dli_fname : "";
}

/// The system's library. Null: there is none but this one.
inline void* open_real(const char* name) {
  for (const char* const folder : {BYPASS_LIBIBVERBS_FOLDER, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                                   "/usr/lib64", "/usr/lib"}) {
    std::array<char, 4096> path;
    std::snprintf(path.data(), path.size(), "%s/%s", folder, name);
    void* const library = dlopen(path.data(), RTLD_LAZY | RTLD_LOCAL);
    const link_map* const map = map_of(library);
    if (map != nullptr && std::strcmp(map->l_name, own_path()) != 0) return library;
  }
  return nullptr;
}

/// libbypass-softverbs.so lies in the folder above.
inline void* open_soft() {
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

/// A function at its version in a library; null: the library, or the function there, does not exist.
inline void* find_in(void* library, const Name& name) {
  return library == nullptr ? nullptr : dlvsym(library, name.name, name.version);
}

inline void set_place(const Name& name, void* at) {
  bypass_places[static_cast<std::size_t>(name.line)] = at != nullptr ? at : reinterpret_cast<void*>(absent);
}

}  // namespace bypass::softverbs
