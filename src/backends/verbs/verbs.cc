#include "backends/verbs/verbs.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "backends/packet/libc.h"
#include "backends/soft_name.h"

namespace bypass::verbs {
namespace {

constexpr const char* kReal = "libibverbs.so.1";
std::atomic<void (*)()> drop_soft{nullptr};
std::atomic<void (*)(bool)> protect_soft{nullptr};

// The library is never closed: it has threads and handlers of its own.
bool resolve(const char* path, Verbs& verbs, std::string& problem) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    problem = dlerror();
    return false;
  }
  // The software devices' threads and descriptors belong to this process, too.
  const auto use_host = reinterpret_cast<void (*)(const Host*)>(dlsym(library, "bypass_softverbs_use_host"));
  if (use_host != nullptr) use_host(packet::host);
  const auto drop = reinterpret_cast<void (*)()>(dlsym(library, "bypass_softverbs_drop_in_child"));
  if (drop != nullptr) drop_soft.store(drop, std::memory_order_release);
  const auto protect = reinterpret_cast<void (*)(bool)>(dlsym(library, "bypass_softverbs_protect_descriptors"));
  if (protect != nullptr) protect_soft.store(protect, std::memory_order_release);
  verbs.wire_mtu = reinterpret_cast<decltype(verbs.wire_mtu)>(dlsym(library, "bypass_softverbs_mtu"));
  verbs.lost = reinterpret_cast<decltype(verbs.lost)>(dlsym(library, "bypass_softverbs_lost"));
  verbs.problem = reinterpret_cast<decltype(verbs.problem)>(dlsym(library, "bypass_softverbs_problem"));
  const char* missing = nullptr;
  const auto find = [&](const char* name) {
    void* const found = dlsym(library, name);
    if (found == nullptr) missing = name;
    return found;
  };
#define BYPASS_VERBS_LOOK_UP(name) verbs.name = reinterpret_cast<decltype(verbs.name)>(find("ibv_" #name));
  BYPASS_VERBS_CALLS(BYPASS_VERBS_LOOK_UP)
#undef BYPASS_VERBS_LOOK_UP
#define BYPASS_VERBS_LOOK_UP(name) verbs.name = reinterpret_cast<decltype(verbs.name)>(dlsym(library, "ibv_" #name));
  BYPASS_VERBS_NEWER_CALLS(BYPASS_VERBS_LOOK_UP)
#undef BYPASS_VERBS_LOOK_UP
  verbs.reg_mr_iova = reinterpret_cast<decltype(verbs.reg_mr_iova)>(dlsym(library, "ibv_reg_mr_iova"));
  verbs.query_gid_ex = reinterpret_cast<decltype(verbs.query_gid_ex)>(dlsym(library, "_ibv_query_gid_ex"));
  verbs.query_port = reinterpret_cast<decltype(verbs.query_port)>(find("ibv_query_port"));
  if (missing == nullptr) return true;
  problem = std::string(path) + " has no " + missing;
  return false;
}

}  // namespace

int Verbs::look_at_port(ibv_context* context, std::uint8_t number, ibv_port_attr& out) const {
  std::memset(&out, 0, sizeof out);
  const verbs_context* const extended = verbs_get_ctx_op(context, query_port);
  if (extended != nullptr) return extended->query_port(context, number, &out, sizeof out);
  return query_port(context, number, reinterpret_cast<_compat_ibv_port_attr*>(&out));
}

void drop_soft_in_child() {
  if (void (*const drop)() = drop_soft.load(std::memory_order_acquire); drop != nullptr) drop();
}

void protect_soft_descriptors(bool on) {
  if (void (*const protect)(bool) = protect_soft.load(std::memory_order_acquire); protect != nullptr) protect(on);
}

bool is_soft(const std::string& device) {
  return soft_index(device).has_value();
}

const Verbs* verbs_for(const std::string& device, std::string& problem) {
  static Verbs real, soft;
  Verbs& verbs = is_soft(device) ? soft : real;
  if (verbs.query_port != nullptr) return &verbs;
  Verbs found;
  if (!is_soft(device)) {
    if (resolve(kReal, found, problem)) return &(verbs = found);
    problem += " (Debian: apt install libibverbs1 ibverbs-providers)";
    return nullptr;
  }
  char path[4096];
  if (!packet::host->file_of_build("libbypass-softverbs.so", path, sizeof path)) {
    problem = "libbypass-softverbs.so, which makes the device, is not beside libbypass.so";
    return nullptr;
  }
  return resolve(path, found, problem) ? &(verbs = found) : nullptr;
}

}  // namespace bypass::verbs
