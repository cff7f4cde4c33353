#include "softverbs/abi/device_list.h"

#include <endian.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "config/port_check.h"
#include "os/log/log.h"
#include "os/net/address_text.h"
#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/objects.h"
#include "softverbs/abi/real.h"

namespace bypass::softverbs {
namespace {

// A stable name for one end of a wire. The two ends of a wire differ in kind, hosts in their addresses.
std::uint64_t make_guid(const runtime::PortConfig& wire) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  };
  add(wire.kind);
  add(":");
  add(wire.target);
  for (const Prefix& prefix : wire.addresses) add(runtime::to_text(prefix.address).view());
  // A locally administered EUI-64 that is not a group address.
  return (hash & ~(std::uint64_t{1} << 56)) | std::uint64_t{2} << 56;
}

std::vector<SoftDevice> make_devices() {
  const runtime::Config& config = setup();
  std::vector<SoftDevice> devices(config.ok() ? config.soft.size() : 0);
  for (std::size_t i = 0; i < devices.size(); i++) {
    SoftDevice& device = devices[i];
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    std::snprintf(device.name, sizeof device.name, "soft%zu", i);
    std::snprintf(device.dev_name, sizeof device.dev_name, "soft%zu", i);
    std::snprintf(device.ibdev_path, sizeof device.ibdev_path, "/sys/class/infiniband/soft%zu", i);
    device.index = i;
    device.guid = htobe64(make_guid(config.soft[i]));
  }
  return devices;
}

std::vector<SoftDevice>& devices() {
  static auto* const made = new std::vector<SoftDevice>(make_devices());
  return *made;
}

// A list that programs hold, with the real library's list of the devices in it.
struct DeviceList {
  std::vector<ibv_device*> entries;  // ends with null
  ibv_device** real = nullptr;
};
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
std::vector<std::unique_ptr<DeviceList>>& lists() {
  static auto* const made = new std::vector<std::unique_ptr<DeviceList>>;
  return *made;
}

std::unique_ptr<DeviceList> take_list(ibv_device** entries) {
  pthread_mutex_lock(&g_mutex);
  std::unique_ptr<DeviceList> taken;
  const auto at =
      std::find_if(lists().begin(), lists().end(), [&](const auto& list) { return list->entries.data() == entries; });
  if (at != lists().end()) {
    taken = std::move(*at);
    lists().erase(at);
  }
  pthread_mutex_unlock(&g_mutex);
  return taken;
}

}  // namespace

SoftDevice* soft_device(ibv_device* device) {
  return is_soft(device) ? static_cast<SoftDevice*>(device) : nullptr;
}

__be64 device_guid(std::size_t index) {
  return devices()[index].guid;
}

bool is_soft(const ibv_device* device) {
  const auto& all = devices();
  const auto* const begin = reinterpret_cast<const std::byte*>(all.data());
  const auto* const at = reinterpret_cast<const std::byte*>(device);
  return at >= begin && at < begin + all.size() * sizeof(SoftDevice);
}

namespace {

// A user who preloads this library and finds no device has forgotten a setting: says which.
void say_what_is_missing() {
  static const bool said = [] {
    BYPASS_LOG_WARN(
        "libbypass-softverbs makes no RDMA device, and there is no other: BYPASS_SOFT=WIRE makes soft0 (BYPASS_SOFT="
        "vhost:/run/wire.sock and BYPASS_SOFT_ADDR=10.9.0.1/24, say)");
    return true;
  }();
  (void)said;
}

// Such a device is listed, like a card whose link is down: its wire may exist by the time it is opened.
void say_which_cannot_be_opened() {
  static const bool said = [] {
    for (const runtime::PortConfig& wire : setup().soft) {
      const std::string problem = runtime::quick_check(wire);
      if (!problem.empty()) BYPASS_LOG_WARN("%s", runtime::soft_problem(wire, problem).c_str());
    }
    return true;
  }();
  (void)said;
}

ibv_device** real_list_alone(decltype(&ibv_get_device_list) next, int* num_devices) {
  int found = 0;
  ibv_device** const list = next(&found);
  const int error = errno;
  if ((list == nullptr || found == 0) && setup().ok() && !is_hosted()) say_what_is_missing();
  errno = error;
  if (num_devices != nullptr) *num_devices = found;
  return list;
}

}  // namespace

extern "C" {

ibv_device** ibv_get_device_list(int* num_devices) {
  const auto next = BYPASS_REAL(ibv_get_device_list);
  auto& soft = devices();
  if (soft.empty() && next != nullptr) return real_list_alone(next, num_devices);
  if (!is_hosted()) say_which_cannot_be_opened();
  auto list = std::make_unique<DeviceList>();
  int found = 0;
  const int error = errno;
  if (next != nullptr) list->real = next(&found);
  errno = error;  // a missing real device, or missing kernel support, is no failure
  for (SoftDevice& device : soft) list->entries.push_back(&device);
  for (int i = 0; list->real != nullptr && i < found; i++) list->entries.push_back(list->real[i]);
  list->entries.push_back(nullptr);
  if (num_devices != nullptr) *num_devices = static_cast<int>(list->entries.size() - 1);
  ibv_device** const entries = list->entries.data();
  pthread_mutex_lock(&g_mutex);
  lists().push_back(std::move(list));
  pthread_mutex_unlock(&g_mutex);
  return entries;
}

void ibv_free_device_list(ibv_device** list) {
  const auto ours = take_list(list);
  ibv_device** const real_list = ours == nullptr ? list : ours->real;
  if (real_list != nullptr) BYPASS_REAL(ibv_free_device_list)(real_list);
}

const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}

__be64 ibv_get_device_guid(ibv_device* device) {
  const SoftDevice* const soft = soft_device(device);
  return soft != nullptr ? soft->guid : BYPASS_REAL(ibv_get_device_guid)(device);
}

int ibv_get_device_index(ibv_device* device) {
  // The kernel's number of a device; ours have none.
  return is_soft(device) ? -1 : BYPASS_REAL(ibv_get_device_index)(device);
}

}  // extern "C"

}  // namespace bypass::softverbs
