#include "softverbs/abi/adapter.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "backends/wire_target.h"
#include "config/port_check.h"
#include "os/log/log.h"
#include "os/net/kernel_network.h"
#include "os/os.h"
#include "os/own/cancellation.h"
#include "os/own/own_work.h"
#include "os/own/unwinder.h"
#include "os/poll_by_parts.h"
#include "runtime/ports/plugin.h"
#include "softverbs/abi/objects.h"
#include "softverbs/abi/setup.h"
#include "stack/context.h"

namespace bypass::softverbs {
namespace {

using std::chrono::milliseconds;

/// For so long after a look at the wire for one completion queue, a poll of another queue need not look again.
constexpr Duration kFresh = std::chrono::microseconds(1);

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

/// How long to wait until a peer and a link are there.
constexpr Duration kPeerPatience = std::chrono::seconds{2};
/// How long a process that ends waits for peers that do not answer.
constexpr Duration kFarewellPatience = milliseconds{100};
/// The pause between two looks during these waits.
constexpr timespec kPeerInterval{0, 200'000};
/// After so many polls of the program, or frames that it took, since the progress thread's last look, the program
/// counts as busy and looks after the wire itself.
constexpr std::uint64_t kBusyPolls = 64;
/// The same, but only if its last call was at most this long ago: a program that handles much takes its time.
constexpr Duration kRecently = std::chrono::microseconds{50};
/// For so many polls after libbypass asked to be notified of the next completion, it counts as awake: before it sleeps
/// it makes only a few more polls.
constexpr unsigned kAwakePolls = 16;
/// The program may stop polling at any moment, to wait for a peer's write to its memory. The progress thread checks for
/// that soon after such a stop, then less and less often, at last at this interval. Until then a peer may wait for an
/// acknowledgement that was left to the program's next call.
constexpr Duration kFirstAbsence = std::chrono::microseconds{25};
constexpr Duration kLongestAbsence = milliseconds{1};
/// The same under libbypass if nobody has asked for a notification. A wake-up costs its thread about 40 µs if both have
/// one core; at a thousand a second that would be its 99th percentile.
constexpr Duration kHostedAbsence = milliseconds{10};
/// The wire is full: the first look comes after this time, later ones less often, at least once a tick.
constexpr Duration kFirstFullPause = std::chrono::microseconds{5};

// Makes the secret for the keys. False: no random numbers can be had.
bool make_secret(tcp::Secret& secret) {
  return os::fill_random(&secret, sizeof secret);
}

timespec to_timespec(Duration duration) {
  return {static_cast<time_t>(duration / std::chrono::seconds{1}),
          static_cast<long>((duration % std::chrono::seconds{1}).count())};
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

// The peer may not have taken our last frames yet, perhaps with an acknowledgement that it waits for. They are lost
// with this end of the wire. A peer that answers a request has taken everything that was sent before it. (A kernel
// keeps frames that it was given.)
void Adapter::say_farewell() {
  if (interface_ != 0) return;
  Patience patience(*this);
  for (const Instant deadline = clock_.now() + kFarewellPatience; clock_.now() < deadline;) {
    {
      Turn turn(*this);
      if (!turn || port_->link() == LinkState::kDown || turn->farewell(clock_.now()) == 0) return;
      turn.poll();
    }
    if (!patience.wait_a_little()) ppoll(nullptr, 0, &kPeerInterval, nullptr);
  }
}

void Adapter::before_exit() {
  const TableLock lock;
  for (Adapter* const adapter : g_adapters) {
    if (adapter == nullptr) continue;
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

// --- The turn of the lock's holder

std::size_t Adapter::poll(Instant now, rdma::Acks acks) {
  const std::size_t frames = engine_->poll(now, acks);
  if (frames > 0) last_useful_ = now;
  return frames;
}

void Adapter::hand_on_events() {
  if (!engine_->has_events()) return;
  for (void* user = nullptr; engine_->take_completion_event(user);) static_cast<CompletionQueue*>(user)->notify();
  for (rdma::AsyncEvent event; engine_->take_async_event(event);) deliver(event);
}

void Adapter::deliver(const rdma::AsyncEvent& event) {
  if (event.user == nullptr) {
    ibv_async_event told{};
    told.event_type = event.type;
    if (event.type != IBV_EVENT_DEVICE_FATAL) told.element.port_num = 1;
    for (Context* const context : contexts_) context->async.push({told, nullptr});
    return;
  }
  switch (event.type) {
    case IBV_EVENT_CQ_ERR:
      return static_cast<CompletionQueue*>(event.user)->report(event.type);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return static_cast<SharedReceiveQueue*>(event.user)->report(event.type);
    default:
      return static_cast<QueuePair*>(event.user)->report(event.type);
  }
}

void Adapter::settle() {
  hand_on_events();
  const bool minds_itself = is_hosted() && !asked_;
  const Instant next = minds_itself ? kNever : engine_->next_timeout();
  if (next != kNever && next + tick_ < sleeps_until_) wake_progress();
}

int Adapter::physical_state() const {
  constexpr int kPolling = 2, kDisabled = 3, kLinkUp = 5;
  if (port_->forbidden()) return kDisabled;
  return port_->link() == LinkState::kUp ? kLinkUp : kPolling;
}

ibv_port_state Adapter::port_state() const {
  // A card without a carrier is down. But on a wire in memory the peer's program, which the user starts second, makes
  // the link. Pingpong programs and perftest look at the state once, before the user starts the peer, and end if it is
  // down. So a program is told that a link which was never up yet is up. libbypass, which waits for the event, is told
  // the truth.
  const std::string& kind = setup().soft[index_].kind;
  const bool waits = !is_hosted() && (kind == "vhost" || kind == "virtio") && port_->link_ups() == 0;
  return waits || port_->link() == LinkState::kUp ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
}

std::size_t Adapter::poll_for_program(Instant now, rdma::Acks acks) {
  if (inherited_) return 0;
  const bool awake = asked_ && is_hosted() && ++polls_since_asked_ >= kAwakePolls;
  if (awake) stop_watching(now);
  if (armed_ && (awake || passed_by_.load(std::memory_order_relaxed))) be_alone();
  polls_++;
  called_at_ = now;
  if (found_) last_useful_ = now;
  found_ = false;
  const std::size_t frames = poll(now, acks);
  polls_ += frames;
  return frames;
}

std::size_t Adapter::Turn::poll() {
  const std::size_t frames = adapter_.poll_for_program(adapter_.clock_.now(), rdma::Acks::kSend);
  hand_on_events();
  return frames;
}

std::size_t Adapter::Turn::look(std::uint64_t& seen) {
  const Instant now = adapter_.clock_.now();
  const bool others = std::exchange(seen, adapter_.looks_) != adapter_.looks_;
  if (others && now - adapter_.looked_at_ < kFresh) return 0;
  seen = ++adapter_.looks_;
  adapter_.looked_at_ = now;
  return adapter_.poll_for_program(now, adapter_.acks());
}

void Adapter::Turn::post() {
  const Instant now = adapter_.clock_.now();
  adapter_.called_at_ = now;
  adapter_.engine_->run(now, adapter_.acks());
}

bool Adapter::Turn::found(std::size_t completions) {
  if (completions > 0) {
    adapter_.found_ = true;
    return false;
  }
  return adapter_.called_at_ - adapter_.last_useful_ > adapter_.spin_ && !is_hosted();
}

void Adapter::Turn::sleeps(bool asleep) {
  if (!asleep) {
    adapter_.sleepers_--;
    return;
  }
  adapter_.sleepers_++;
  if (!adapter_.inherited_) adapter_.watch_wire();
}

int Adapter::Turn::request_notify(rdma::Cq& queue, bool solicited_only) {
  const int error = adapter_.engine_->request_notify(queue, solicited_only);
  adapter_.asked_ = true;
  adapter_.polls_since_asked_ = 0;
  adapter_.watch_wire();
  return error;
}

// --- Waiting

Adapter::Patience::Patience(const Adapter& adapter) : adapter_(adapter) {
  const Instant now = adapter.clock_.now();
  const auto after = [](Instant from, Duration budget) { return budget < kNever - from ? from + budget : kNever; };
  spin_until_ = after(now, adapter.spin_);
  yield_until_ = after(spin_until_, adapter.yield_);
}

bool Adapter::Patience::wait_a_little() {
  const Instant now = adapter_.clock_.now();
  if (now >= yield_until_) return false;
  if (now < spin_until_)
    __builtin_ia32_pause();
  else
    sched_yield();
  return true;
}

bool Adapter::await_link() {
  if (is_hosted()) return false;
  for (const Instant deadline = clock_.now() + kPeerPatience;;) {
    {
      Turn turn(*this);
      turn.poll();
      if (!turn || port_->link() == LinkState::kUp) return true;
    }
    if (clock_.now() > deadline) return false;
    ppoll(nullptr, 0, &kPeerInterval, nullptr);
  }
}

bool Adapter::is_own(const ibv_gid& gid) {
  const Turn turn(*this);
  if (!turn) return false;
  const auto own = turn->gids();
  return std::any_of(own.begin(), own.end(), [&](const ibv_gid& g) { return std::memcmp(&g, &gid, sizeof g) == 0; });
}

int Adapter::await_peer(const ibv_gid& gid) {
  if (is_hosted() || is_own(gid)) return 0;
  if (!await_link()) return ETIMEDOUT;
  for (;;) {
    {
      Turn turn(*this);
      if (!turn) return EIO;
      turn.poll();
      const rdma::Resolution found = turn->resolve(gid, clock_.now());
      if (found == rdma::Resolution::kKnown) return 0;
      if (found == rdma::Resolution::kUnreachable) return EHOSTUNREACH;
      turn.run();
    }
    ppoll(nullptr, 0, &kPeerInterval, nullptr);
  }
}

// --- The progress thread

void Adapter::progress(void* self) {
  auto& adapter = *static_cast<Adapter*>(self);
  for (;;) {
    if (!adapter.lock_.try_lock()) {  // the lock's holder looks after the wire
      adapter.passed_by_.store(true, std::memory_order_relaxed);
      adapter.sleep_until(adapter.clock_.now() + adapter.longer_absence(), -1);
      continue;
    }
    Instant until;
    int port_fd = -1;
    {
      const Turn turn(adapter, std::adopt_lock);
      if (adapter.stopping_) return;
      adapter.passed_by_.store(false, std::memory_order_relaxed);
      until = adapter.look();
      port_fd = adapter.port_->wait_descriptor(0);
      // Without a descriptor the port is looked at after a tick.
      if (port_fd < 0) until = std::min(until, adapter.clock_.now() + adapter.tick_);
      if (adapter.engine_->holds_wire()) {  // waiting frames would wake it at once
        port_fd = -1;
        adapter.passed_by_.store(true, std::memory_order_relaxed);
      }
      adapter.sleeps_until_ = until;
      adapter.woken_ = false;
    }
    adapter.sleep_until(until, port_fd);
  }
}

// When to look again. While the program polls, there is nothing to do here, and peers need not wake this process.
Instant Adapter::look() {
  sleeps_until_ = Instant::min();
  const Instant now = clock_.now();
  const bool busy = sleepers_ == 0 && is_about(now);
  seen_polls_ = polls_;
  clock_.correct();
  if (busy) {
    be_alone();
    if (!is_hosted()) return now + longer_absence();
    return now + (engine_->owes_notification() ? std::min(kLongestAbsence, tick_) : kHostedAbsence);
  }
  absence_ = kFirstAbsence;
  if (poll(now) != 0 || (!engine_->holds_wire() && !arm())) {
    full_pause_ = {};
    return now;
  }
  if (!engine_->output_pending()) {
    full_pause_ = {};
    return engine_->next_timeout();
  }
  if (!engine_->waits_for_room()) return now;
  // A peer that is stopped may leave the wire full for ever.
  full_pause_ = std::clamp(2 * full_pause_, kFirstFullPause, std::max(kFirstFullPause, tick_));
  return now + full_pause_;
}

// libbypass reports when it goes to sleep, and has a progress thread of its own for a program that computes.
bool Adapter::is_about(Instant now) const {
  const std::uint64_t polls = polls_ - seen_polls_;
  return is_hosted() ? !asked_ && polls != 0 : polls >= kBusyPolls && now - called_at_ < kRecently;
}

Duration Adapter::longer_absence() {
  return absence_ = std::min({absence_ * 2, kLongestAbsence, tick_});
}

// To be called for a program that is about to sleep.
void Adapter::watch_wire() {
  if (!armed_) arm();
  if (!armed_ || passed_by_.load(std::memory_order_relaxed)) wake_progress();
}

// Another of its threads may still sleep: the progress thread must look again, however long it meant to sleep.
void Adapter::stop_watching(Instant now) {
  asked_ = false;
  const Duration pause = engine_->owes_notification() ? std::min(kLongestAbsence, tick_) : kHostedAbsence;
  if (sleeps_until_ > now + pause) wake_progress();
}

// The program's polls suffice: peers need not wake this process.
void Adapter::be_alone() {
  if (!armed_) port_->arm(0);  // this takes what has made the descriptor readable
  port_->disarm(0);
  armed_ = false;
}

// False: look again before sleeping.
bool Adapter::arm() {
  armed_ = port_->arm(0);
  return poll(clock_.now()) == 0 && armed_;
}

void Adapter::sleep_until(Instant when, int port_fd) const {
  pollfd items[2] = {{wake_fd_, POLLIN, 0}, {port_fd, POLLIN, 0}};
  const Duration left = std::max(when - clock_.now(), Duration::zero());
  if (when <= clock_.now()) return;
  const timespec timeout = to_timespec(left);
  const timespec* const most = when == kNever ? nullptr : &timeout;
  if (ppoll(items, 2, most, nullptr) < 0 && errno != EINTR && socket::poll_by_parts(items, most) < 0)
    os::eventfd_take(wake_fd_);  // the caller's value does not matter
  // the program has closed all descriptors that it did not know
  if (((items[0].revents | items[1].revents) & POLLNVAL) != 0) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true, std::memory_order_relaxed))
      BYPASS_LOG_WARN(
          "the program has closed descriptors of ours: what its peers send it is seen late while it sleeps");
    const timespec tick = to_timespec(std::min(left, tick_));
    ppoll(nullptr, 0, &tick, nullptr);
    return;
  }
  if (items[0].revents != 0) os::eventfd_take(wake_fd_);
}

void Adapter::wake_progress() {
  if (woken_) return;
  woken_ = true;
  os::eventfd_add(wake_fd_, 1);
}

}  // namespace bypass::softverbs

void bypass_softverbs_drop_in_child() {
  bypass::softverbs::Adapter::after_fork_in_child();
}
