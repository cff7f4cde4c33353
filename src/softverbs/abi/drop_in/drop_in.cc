// libibverbs.so.1, for LD_LIBRARY_PATH: the software devices for programs that load libibverbs themselves (dlopen,
// dlvsym), which a preloaded library does not see. It has every name of the real library at its version. A name that
// libbypass-softverbs.so defines is that library's, any other is the real library's. The real one is loaded by its
// path. Drivers of cards, which need libibverbs.so.1 by name, find this one.
#include "softverbs/abi/drop_in/forwarding.h"

#ifndef BYPASS_LIBIBVERBS_FOLDER
#define BYPASS_LIBIBVERBS_FOLDER "/usr/lib"
#endif

extern "C" {
/// Data of the real library, which drivers read.
__attribute__((visibility("default"))) bool verbs_allow_disassociate_destroy;
}

#define NAME(name, at, version) BYPASS_NAME(__LINE__, name, at, version)
#include "softverbs/abi/drop_in/names.inc"
#undef NAME

namespace bypass::softverbs {
namespace {

constexpr Name kNames[] = {
#define NAME(name, at, version) {__LINE__, #name, version, (at)[1] == '@'},
#include "softverbs/abi/drop_in/names.inc"
#undef NAME
};
static_assert(std::size(kNames) + 2 < std::tuple_size_v<decltype(bypass_places)>);

constexpr const char* kReal[] = {
    BYPASS_LIBIBVERBS_FOLDER "/libibverbs.so.1", "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib/aarch64-linux-gnu/libibverbs.so.1", "/usr/lib64/libibverbs.so.1", "/usr/lib/libibverbs.so.1"};

[[gnu::constructor]] void find_functions() {
  void* const real = open_real(kReal);
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
