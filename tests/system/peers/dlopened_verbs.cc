// A program that finds libibverbs itself, as some do that also run without it: by dlopen and dlvsym. Prints the
// devices.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <cstdio>

namespace {

template <typename Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlvsym(library, name, "IBVERBS_1.1"));
}

}  // namespace

int main() {
  void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::puts(dlerror()), 1;
  auto* const list_devices = find<decltype(ibv_get_device_list)>(library, "ibv_get_device_list");
  auto* const free_list = find<decltype(ibv_free_device_list)>(library, "ibv_free_device_list");
  auto* const open_device = find<decltype(ibv_open_device)>(library, "ibv_open_device");
  auto* const close_device = find<decltype(ibv_close_device)>(library, "ibv_close_device");
  if (list_devices == nullptr || free_list == nullptr || open_device == nullptr || close_device == nullptr) return 1;
  int count = 0;
  ibv_device** const devices = list_devices(&count);
  for (int i = 0; i < count; i++) {
    ibv_context* const context = open_device(devices[i]);
    std::printf("%s %s\n", devices[i]->name,
                context != nullptr && close_device(context) == 0 ? "opens" : "does not open");
  }
  if (devices != nullptr) free_list(devices);
  return 0;
}
