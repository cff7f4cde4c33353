// The plugin's entry: a Backend for frames over raw-packet queue pairs and for links over RC queue pairs.
#include "backends/backend.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/packet/descriptor.h"
#include "backends/packet/libc.h"
#include "backends/verbs/rc/device.h"
#include "backends/verbs/verbs_port.h"

namespace bypass::verbs {
namespace {

class VerbsBackend final : public Backend {
 public:
  bool check(const PortSpec&, std::string&) override { return true; }  // only opening the device can tell
  Port* open(const PortSpec& spec, std::string& problem) override;
  void close(Port* port) override;
  bool keep_flows(Port* port, const Handover& handover, std::string& problem) override;
  fastpath::LinkDevice* open_links(const std::string& device, const fastpath::LinkDeviceSpec& spec,
                                   std::string& problem) override;
  void close_links(fastpath::LinkDevice* device) override;
  void drop_in_child() override;
  void protect_descriptors(bool on) override;

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<VerbsPort>> ports_;
  std::vector<std::unique_ptr<RcDevice>> link_devices_;
};

Port* VerbsBackend::open(const PortSpec& spec, std::string& problem) {
  auto port = VerbsPort::open(spec, problem);
  if (port == nullptr) {
    problem = spec.kind + ":" + spec.target + ": " + problem;
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  ports_.push_back(std::move(port));
  return ports_.back().get();
}

void VerbsBackend::close(Port* port) {
  const std::lock_guard lock(mutex_);
  std::erase_if(ports_, [&](const auto& each) { return each.get() == port; });
}

bool VerbsBackend::keep_flows(Port* port, const Handover& handover, std::string& problem) {
  return static_cast<VerbsPort*>(port)->keep_flows(handover, problem);
}

fastpath::LinkDevice* VerbsBackend::open_links(const std::string& device, const fastpath::LinkDeviceSpec& spec,
                                               std::string& problem) {
  auto made = RcDevice::open(device, spec, problem);
  if (made == nullptr || !made->start_thread(problem)) return nullptr;
  const std::lock_guard lock(mutex_);
  link_devices_.push_back(std::move(made));
  return link_devices_.back().get();
}

void VerbsBackend::close_links(fastpath::LinkDevice* device) {
  const std::lock_guard lock(mutex_);
  std::erase_if(link_devices_, [&](const auto& each) { return each.get() == device; });
}

void VerbsBackend::drop_in_child() {
  for (const auto& device : link_devices_) device->drop_in_child();
  for (const auto& port : ports_) port->drop_in_child();
  drop_soft_in_child();
  packet::drop_descriptors();
}

// A card's descriptors are closed with its port and its links.
void VerbsBackend::protect_descriptors(bool on) {
  protect_soft_descriptors(on);
  packet::protect_descriptors(on);
}

}  // namespace
}  // namespace bypass::verbs

extern "C" [[gnu::visibility("default")]] bypass::Backend* bypass_backend(const bypass::Host* host) {
  if (!bypass::accept_host(host, bypass::packet::bind_libc)) return nullptr;
  // Never destroyed: its threads outlive the program's static destructors.
  static auto* backend = new bypass::verbs::VerbsBackend;
  return backend;
}
