// The plugin's entry: Backend over DPDK.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/card_drivers.h"
#include "backends/dpdk/card/io_ports.h"
#include "backends/dpdk/control.h"
#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/eal.h"
#include "backends/dpdk/eal/libc.h"
#include "backends/dpdk/eal/verbs_calls.h"
#include "backends/dpdk/port_keeper.h"
#include "backends/dpdk/port_plan.h"
#include "backends/pci_answers.h"
#include "os/own/cancellation.h"

namespace bypass::dpdk {
namespace {

class DpdkBackend final : public Backend {
 public:
  bool check(const PortSpec& spec, std::string& problem) override;
  Port* open(const PortSpec& spec, std::string& problem) override;
  void close(Port* port) override;
  void drop_in_child() override {
    drop_all_descriptors();
    forget_ports_in_child();
    hide_memory_in_child();
  }
  void protect_descriptors(bool on) override { protect_all_descriptors(on); }

 private:
  Port* open_on_control(const PortSpec& spec, std::string& problem, bool& taken);

  Control control_;
  std::vector<std::unique_ptr<PortKeeper>> keepers_;  // control thread only
};

// Checks what the kernel would refuse, before DPDK is asked: a process can start DPDK once only.
bool may_have_card(const PortPlan& plan, std::string& problem, bool& taken) {
  const PciCard card = read_pci_card(plan.device.name);
  std::string text = lock_problem(card, kDpdkOverhead + plan.all_buffer_bytes, lock_limit_of_process());
  if (text.empty()) text = access_problem(card, taken);
  const CardDriver* const driver = driver_of_card(card);
  if (text.empty() && driver != nullptr && works_beside_kernel(*driver)) bind_verbs(text);
  if (!text.empty()) problem = "pci:" + plan.device.name + ": " + text;
  return text.empty();
}

bool DpdkBackend::check(const PortSpec& spec, std::string& problem) try {
  PortPlan plan;
  return make_plan(spec, plan, problem);
} catch (const std::exception& e) {
  problem = e.what();
  return false;
}

Port* DpdkBackend::open(const PortSpec& spec, std::string& problem) try {
  const socket::CancellationOff off;  // a cancelled thread would leave the control thread a request that points nowhere
  if (const int error = control_.start(); error != 0) {
    problem = "no thread for the ports: " + std::string(std::strerror(error));
    return nullptr;
  }
  Port* port = nullptr;
  bool taken = false;
  control_.call([&] { port = open_on_control(spec, problem, taken); });
  errno = taken ? EADDRINUSE : 0;
  return port;
} catch (const std::exception& e) {
  problem = e.what();
  return nullptr;
}

Port* DpdkBackend::open_on_control(const PortSpec& spec, std::string& problem, bool& taken) try {
  PortPlan plan;
  if (!make_plan(spec, plan, problem)) return nullptr;
  if (plan.device.bus == "pci" && !may_have_card(plan, problem, taken)) return nullptr;
  auto keeper = std::make_unique<PortKeeper>(control_, std::move(plan), spec.index);
  if (!keeper->open(problem)) {
    taken = keeper->taken();
    keeper->close();
    return nullptr;
  }
  control_.watch(keeper.get());
  keepers_.push_back(std::move(keeper));
  return keepers_.back()->port();
} catch (const std::exception& e) {
  problem = e.what();
  return nullptr;
}

void DpdkBackend::close(Port* port) try {
  const socket::CancellationOff off;
  control_.call([&] {
    const auto found = std::find_if(keepers_.begin(), keepers_.end(), [&](const auto& k) { return k->port() == port; });
    if (found == keepers_.end()) return;
    control_.forget(found->get());
    (*found)->close();
    keepers_.erase(found);
  });
} catch (const std::exception& e) {
  host->log(LogLevel::kError, e.what());
}

}  // namespace
}  // namespace bypass::dpdk

extern "C" [[gnu::visibility("default")]] bypass::Backend* bypass_backend(const bypass::Host* host) {
  if (!bypass::accept_host(host, bypass::dpdk::bind_libc)) return nullptr;
  // Never destroyed: its thread outlives the program's static destructors.
  static auto* backend = new bypass::dpdk::DpdkBackend;
  return backend;
}
