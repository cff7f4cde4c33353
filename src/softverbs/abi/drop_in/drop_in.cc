// libibverbs.so.1, for LD_LIBRARY_PATH: the software devices for programs that load libibverbs themselves (dlopen,
// dlvsym), which a preloaded library does not see. It has every name of the real library at its version. A name that
// libbypass-softverbs.so defines is that library's, any other is the real library's. The real one is loaded by its
// path. Drivers of cards, which need libibverbs.so.1 by name, find this one.
#define BYPASS_NAMES "softverbs/abi/drop_in/names.inc"
#include "softverbs/abi/drop_in/forwarding.h"

extern "C" {
/// Data of the real library, which drivers read.
__attribute__((visibility("default"))) bool verbs_allow_disassociate_destroy;
}

namespace bypass::softverbs {
namespace {

[[gnu::constructor]] void find_functions() {
  void* const real = open_real("libibverbs.so.1");
  void* const soft = open_soft();
  if (soft != nullptr) {
    using UseLibrary = void(void*);
    auto* const use = reinterpret_cast<UseLibrary*>(dlsym(soft, "bypass_softverbs_use_library"));
    if (use != nullptr) use(real);
  }
  for (const Name& each : kNames) {
    void* const ours = each.is_default ? find_in(soft, each) : nullptr;
    set_place(each, ours != nullptr ? ours : find_in(real, each));
  }
  const void* const flag = real == nullptr ? nullptr : dlsym(real, "verbs_allow_disassociate_destroy");
  if (flag != nullptr) verbs_allow_disassociate_destroy = *static_cast<const bool*>(flag);
}

}  // namespace
}  // namespace bypass::softverbs
