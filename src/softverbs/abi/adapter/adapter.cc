// Opening and closing an adapter, the process's end, and forks.
#include "softverbs/abi/adapter/adapter.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "backends/wire_target.h"
#include "config/port_check.h"
#include "os/log/log.h"
#include "os/net/kernel_network.h"
#include "os/os.h"
#include "os/own/cancellation.h"
#include "os/own/own_work.h"
#include "os/own/unwinder.h"
#include "runtime/ports/plugin.h"
#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/objects.h"
#include "stack/context.h"

namespace bypass::softverbs {
namespace {

// The adapters of this process, and the plugins from which their wires come.
pthread_mutex_t g_table = PTHREAD_MUTEX_INITIALIZER;
std::array<Adapter*, bypass::Context::kMaxPorts> g_adapters{};
runtime::PluginSet* g_plugins = nullptr;  // never destroyed: the ports' threads outlive static destructors

class TableLock {
 public:
  TableLock() { pthread_mutex_lock(&g_table); }
  ~TableLock() { pthread_mutex_unlock(&g_table); }
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;
};

// Makes the secret for the keys. False: no random numbers can be had.
bool make_secret(tcp::Secret& secret) {
  return os::fill_random(&secret, sizeof secret);
}

rdma::DeviceConfig device_config(const runtime::PortConfig& wire) {
  rdma::DeviceConfig config;
  config.addresses = wire.addresses;
  for (const IpAddress& gateway : wire.gateways)
    if (gateway.is_v4()) config.gateway = gateway;
  return config;
}

}  // namespace

// --- Opening and closing

Adapter* Adapter::attach(std::size_t index) {
  const socket::CancellationOff uncancelled;
  const runtime::Inside inside;
  const TableLock lock;
  // libbypass calls us in a forked child. pthread_atfork() would do so only after libbypass has made descriptors there.
  static const int hooks =
      is_hosted() ? 0 : pthread_atfork(nullptr, nullptr, after_fork_in_child) | atexit(before_exit);
  (void)hooks;
  if (g_plugins == nullptr) g_plugins = new runtime::PluginSet;
  Adapter*& place = g_adapters[index];
  if (place == nullptr) {
    auto* const made = new Adapter(index);
    std::string problem;
    if (!made->open(problem)) {
      delete made;
      report(runtime::soft_problem(setup().soft[index], problem).c_str());
      errno = ENODEV;
      return nullptr;
    }
    place = made;
  }
  place->users_++;
  return place;
}

void Adapter::detach() {
  const socket::CancellationOff uncancelled;
  const runtime::Inside inside;
  const TableLock lock;
  if (--users_ > 0) return;
  if (g_adapters[index_] == this) g_adapters[index_] = nullptr;
  if (!inherited_) close();
  // What a forked child has inherited is not freed: the engine's port is the parent's.
  if (inherited_) static_cast<void>(engine_.release());
  delete this;
}

bool Adapter::open(std::string& problem) {
  runtime::prepare_unwinder();
  const runtime::Config& config = setup();
  const runtime::PortConfig& wire = config.soft[index_];
  problem = runtime::quick_check(wire);
  if (!problem.empty()) return false;
  rdma::DeviceConfig device = device_config(wire);
  if (!make_secret(device.secret)) {
    problem = "no random numbers for its keys: getrandom gives none";
    return false;
  }
  backend_ = g_plugins->get(runtime::plugin_of_kind(wire.kind), host(), problem);
  if (backend_ == nullptr) return false;
  port_ = backend_->open(port_spec(config, wire, config.soft.size()), problem);
  if (port_ == nullptr) return false;
  if (wire.shared) {
    const runtime::KernelNetwork network = runtime::read_kernel_network();
    interface_ = network.index_of(wire.target);
    device.link_local = network.link_local_of(interface_);
    device.answer_neighbours = false;  // the kernel answers for its addresses
  }
  engine_ = rdma::Device::create(device, *port_);
  spin_ = config.spin;
  yield_ = config.yield;
  tick_ = config.tick;
  wake_fd_ = own_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_fd_ >= 0 && host().run_thread("soft-verbs", progress, this, &thread_) == 0) return true;
  problem = "no thread for the device";
  close_own(wake_fd_);
  engine_.reset();
  backend_->close(port_);
  return false;
}

void Adapter::close() {
  say_farewell();
  {
    const Turn turn(*this);
    stopping_ = true;
    wake_progress();
  }
  host().join_thread(thread_);
  engine_.reset();
  backend_->close(port_);
  close_own(wake_fd_);
}

void Adapter::add(Context& context) {
  const Turn turn(*this);
  contexts_.push_back(&context);
}

void Adapter::remove(Context& context) {
  const Turn turn(*this);
  std::erase(contexts_, &context);
}

// --- The process's end

void Adapter::before_exit() {
  const TableLock lock;
  for (Adapter* const adapter : g_adapters) {
    if (adapter == nullptr) continue;
    // A card that writes to memory which its program has freed does no harm: the pages are pinned. Here it would fault.
    if (Turn turn(*adapter); turn) turn->let_go_of_memory();
    adapter->say_farewell();
    // The program's other threads may still use it: the port stays open under them, and its file is removed.
    const runtime::PortConfig& wire = setup().soft[adapter->index_];
    if (wire.kind == "vhost") ::unlink(std::string(wire_target(wire.target).path).c_str());
  }
}

// --- A fork: the child lets go of the wires. No lock is taken before it (libbypass's own lock may be held by a thread
// that waits for an adapter's), so the child finds everything but its own memory's layout in any state, and touches
// nothing of an engine.

void Adapter::after_fork_in_child() {
  const bool at_rest = pthread_mutex_trylock(&g_table) == 0;
  for (Adapter*& adapter : g_adapters) {
    if (adapter == nullptr) continue;
    adapter->inherited_ = true;
    adapter->lock_.reset();
    adapter = nullptr;
  }
  if (at_rest && g_plugins != nullptr)
    g_plugins->drop_in_child();
  else
    g_plugins = new runtime::PluginSet(true);
  g_table = PTHREAD_MUTEX_INITIALIZER;
}

void Adapter::protect_descriptors(bool on) {
  pthread_mutex_lock(&g_table);
  if (g_plugins != nullptr) g_plugins->protect_descriptors(on);
  pthread_mutex_unlock(&g_table);
}

}  // namespace bypass::softverbs

void bypass_softverbs_drop_in_child() {
  bypass::softverbs::Adapter::after_fork_in_child();
}

void bypass_softverbs_protect_descriptors(bool on) {
  bypass::softverbs::Adapter::protect_descriptors(on);
}
