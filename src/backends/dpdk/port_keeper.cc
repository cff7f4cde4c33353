#include "backends/dpdk/port_keeper.h"

#include <algorithm>
#include <utility>

#include "backends/dpdk/card/iova.h"
#include "backends/dpdk/card/shared_interrupt.h"
#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/eal.h"
#include "backends/dpdk/eal/libc.h"
#include "backends/pci_answers.h"

namespace bypass::dpdk {
namespace {

using std::chrono::milliseconds;

// How long a vhost-user server may take to answer before it counts as silent.
constexpr int kPatienceMs = 100;
// How often the link is looked at, even if no driver reports a change.
constexpr milliseconds kLookInterval{1000};
// … and a card's, while it is down.
constexpr milliseconds kDarkLookInterval{50};
// How often a vhost end looks whether its new peer has posted receive buffers yet.
constexpr milliseconds kMeetInterval{1};
// … and after this many looks (a guest that has no driver may never do it).
constexpr unsigned kQuickLooks = 1000;
constexpr milliseconds kSlowMeetInterval{50};
// How often a virtio end tries to connect. A user who starts both ends of a wire together has them connected within the
// first second.
constexpr unsigned kQuickTries = 100, kTries = 200;
constexpr milliseconds kQuickTry{10}, kTry{100}, kSlowTry{200};

void poke_control(void* control) {
  static_cast<Control*>(control)->poke();
}

}  // namespace

PortKeeper::PortKeeper(Control& control, PortPlan plan, std::uint16_t index)
    : control_(control), plan_(std::move(plan)), index_(index) {}

PortKeeper::~PortKeeper() = default;

void PortKeeper::on_link_event(void* self) {
  auto* keeper = static_cast<PortKeeper*>(self);
  keeper->port_->await_switch();
  keeper->link_events_.fetch_add(1, std::memory_order_acq_rel);
  keeper->control_.poke();
}

void PortKeeper::on_interrupt_read(void* self) {
  static_cast<PortKeeper*>(self)->port_->on_interrupt_read();
}

bool PortKeeper::create_pools(std::string& problem) {
  const std::string name = "bypass-" + plan_.device.name;
  pool_ = std::make_unique<BufferPool>();
  if (!pool_->create(name.c_str(), plan_.pool, index_, problem)) return false;
  if (!plan_.expected.gather) return true;
  // For each frame of one burst, two pointers to bytes outside of it.
  const PoolConfig pointers{.data_room = 0, .initial = 128, .chunk = 0, .budget_bytes = 0};
  gather_ = std::make_unique<BufferPool>();
  return gather_->create((name + "g").c_str(), pointers, index_, problem);
}

bool PortKeeper::open(std::string& problem) {
  if (!start_eal({plan_.cards, plan_.all_buffer_bytes, plan_.hugepages}, problem)) return false;
  if (!create_pools(problem)) return false;
  port_ = std::make_unique<DpdkPort>(*pool_, gather_.get(), poke_control, &control_);
  port_->announce(plan_.expected, plan_.mac);
  if (!plan_.warning.empty()) host->log(LogLevel::kWarn, plan_.warning.c_str());
  switch (plan_.role) {
    case Role::kVirtio:
      try_virtio(monotonic_now());
      return true;
    case Role::kVhost:
      if (!open_vhost(problem)) return false;
      break;
    case Role::kOther:
      if (!open_device(problem)) return false;
      break;
  }
  phase_ = Phase::kUp;
  const Opened opened = describe(plan_.role == Role::kOther && device_.link_is_up());
  // The port gets its addresses before any thread polls it. A card brings its own MAC address and MTU.
  if (plan_.role == Role::kOther) port_->announce(opened.caps, opened.mac);
  port_->resume(opened);
  return true;
}

bool PortKeeper::open_vhost(std::string& problem) {
  const FolderLock lock(plan_.path);
  std::string detail;
  switch (look_at_peer(plan_.path, kPatienceMs, detail)) {
    case Peer::kAbsent:
      break;
    case Peer::kStale:
      libc.unlink(plan_.path.c_str());
      break;
    case Peer::kForbidden:
      problem = "vhost:" + plan_.path + ": " + detail;
      return false;
    case Peer::kSilent:
      taken_ = true;
      problem =
          "vhost:" + plan_.path + ": another process listens there and does not answer; end it or choose another path";
      return false;
    case Peer::kBusy:
    case Peer::kAlive:
      taken_ = true;
      problem = "vhost:" + plan_.path +
                ": another process serves this path; choose another, or connect to it with virtio:" + plan_.path;
      return false;
  }
  if (!open_device(problem)) return false;
  poke_vhost_thread();
  return true;
}

bool PortKeeper::open_device(std::string& problem) {
  DeviceSpec spec = plan_.device;
  if (plan_.role == Role::kOther) spec.mac = port_->mac();  // a card that comes back keeps the address that peers know
  if (!device_.open(spec, pool_->mempool(), on_link_event, this, problem)) return false;
  if (plan_.role == Role::kOther && device_.has_interrupt_switch())
    follow_reads(device_.interrupt_descriptor(), on_interrupt_read, this);
  return true;
}

Opened PortKeeper::describe(bool link_up) const {
  Opened opened;
  opened.link_up = link_up;
  opened.link_generation = port_->link_generation();
  opened.device = device_.id();
  opened.interrupt_fd = device_.interrupt_descriptor();
  opened.interrupt_switch = device_.has_interrupt_switch();
  opened.proves_interrupt = plan_.role == Role::kOther;
  opened.prepare = plan_.prepare;
  opened.foreign_threads = plan_.foreign_threads;
  // A vhost end that has not met its peer yet does not know what the peer can take. It assumes the best.
  opened.caps = plan_.role == Role::kVhost && !link_up ? plan_.expected : device_.capabilities();
  opened.caps.gather = plan_.expected.gather;
  opened.caps.buffer_bytes = pool_->buffer_bytes();
  opened.mac = plan_.mac.is_zero() ? device_.mac() : plan_.mac;
  return opened;
}

// --- The virtio end

void PortKeeper::try_virtio(Instant now) {
  phase_ = Phase::kAbsent;
  std::string detail;
  const Peer peer = look_at_peer(plan_.path, kPatienceMs, detail);
  if (peer == Peer::kAlive && open_device(detail)) {
    if (tries_ != 0) host->log(LogLevel::kDebug, ("virtio:" + plan_.path + ": the peer is there").c_str());
    tries_ = 0;
    last_complaint_.clear();
    phase_ = Phase::kUp;
    port_->resume(describe(true));
    return;
  }
  port_->tell_forbidden(peer == Peer::kForbidden);
  explain_absence(peer, detail);
  due_ = next_try(now);
}

// Each cause is logged once, not at every try. It becomes a warning when it has lasted: the user may have named a wrong
// path. A server that is ending also looks busy for a moment.
void PortKeeper::explain_absence(Peer peer, const std::string& detail) {
  busy_looks_ = peer == Peer::kBusy ? busy_looks_ + 1 : 0;
  if (busy_looks_ == 1) return;
  std::string text = "virtio:" + plan_.path + ": ";
  switch (peer) {
    case Peer::kAbsent:
      text += "nobody serves the path yet; waiting";
      break;
    case Peer::kStale:
      text += "the process that served the path has gone; waiting";
      break;
    case Peer::kSilent:
      text += "the process that serves the path does not answer; waiting";
      break;
    case Peer::kBusy:
      text += "another client is connected already; waiting for it to leave";
      break;
    default:
      text += detail;
      break;
  }
  const bool lasts = peer == Peer::kBusy || peer == Peer::kForbidden || tries_ >= kQuickTries;
  const LogLevel level = lasts ? LogLevel::kWarn : LogLevel::kInfo;
  if (text == last_complaint_ && level == last_level_) return;
  last_complaint_ = text;
  last_level_ = level;
  host->log(level, text.c_str());
}

// A try costs about 20 us.
Instant PortKeeper::next_try(Instant now) {
  tries_++;
  if (tries_ < kQuickTries) return now + kQuickTry;
  return now + (tries_ < kTries ? kTry : kSlowTry);
}

void PortKeeper::stop() {
  port_->set_link(false);
  phase_ = Phase::kStopping;
  port_->request_pause();
}

void PortKeeper::finish_stopping(Instant now) {
  if (!port_->is_paused()) return;
  const bool card = device_.is_card();
  if (card) left_driver_ = device_.kernel_driver();
  close_device();
  port_->count_reopening();
  tries_ = 0;
  if (!card) return try_virtio(now);
  port_->set_gone(true);
  tell_card(LogLevel::kWarn, "the card has been taken from this process (it was removed, or unbound from " +
                                 left_driver_ + "); its port is closed, and opens again when the card is back");
  try_card(now);
}

// --- A card that comes back

// Until the kernel has it, the card looks as if it were still bound: to open it now would take it again.
void PortKeeper::try_card(Instant now) {
  phase_ = Phase::kAbsent;
  due_ = now + kLookInterval;
  if (kernel_driver_of(plan_.device.name) != left_driver_) left_driver_.clear();
  if (!left_driver_.empty()) return;
  const PciCard card = read_pci_card(plan_.device.name);
  if (!card.is_there) return;
  std::string problem = obstacle(card);
  if (problem.empty() && open_device(problem)) {
    tell_card(LogLevel::kInfo, "the card is back");
    port_->set_gone(false);
    phase_ = Phase::kUp;
    return port_->resume(describe(device_.link_is_up()));
  }
  tell_card(LogLevel::kWarn, problem);
}

// What keeps this process from a card that has come back. Empty: nothing that can be seen.
std::string PortKeeper::obstacle(const PciCard& card) {
  std::string problem = card_problem(card);
  bool taken = false;
  if (problem.empty()) problem = access_problem(card, taken);
  if (problem.empty()) problem = iova_problem(card, eal_has_physical_addresses() ? Iova::kPhysical : Iova::kVirtual);
  return problem;
}

// Each text once, not at every look.
void PortKeeper::tell_card(LogLevel level, const std::string& text) {
  const std::string name = "pci:" + plan_.device.name;
  const std::string line = text.starts_with(plan_.device.name) ? text : name + ": " + text;
  if (line == last_complaint_) return;
  last_complaint_ = line;
  host->log(level, line.c_str());
}

// --- Watching

// Logged once: a program that sleeps wakes later than by an interrupt, and its user should know why.
void PortKeeper::tell_interrupt() {
  const InterruptTrust::State state = port_->interrupt();
  if (std::exchange(told_interrupt_, state) == state || state != InterruptTrust::State::kDead) return;
  const std::string why =
      device_.interrupt_descriptor() < 0 ? " has no receive interrupts" : "'s receive interrupts do not come";
  host->log(LogLevel::kWarn, (plan_.device.name + ": driver " + device_.driver() + why +
                              "; a sleeping program looks at it every 0.5 to 4 ms instead")
                                 .c_str());
}

void PortKeeper::watch_link(Instant now) {
  if (plan_.role == Role::kVhost) return watch_vhost_link(now);
  if (device_.is_leaving()) return stop();
  const bool is_up = device_.link_is_up();
  if (plan_.role == Role::kVirtio && !is_up) return stop();
  const std::uint64_t lost = plan_.role == Role::kOther ? device_.dropped_by_device() : 0;
  if (device_.is_leaving()) return stop();  // it has gone meanwhile: what its registers said may be ones
  if (plan_.role == Role::kOther) port_->set_lost(lost);
  if (port_->is_running()) port_->set_link(is_up);
}

// A virtio-user peer starts its device three times in a row while it opens (DPDK's driver negotiates anew at
// each step). Only the last time are there receive buffers: then frames can pass, and the link is up.
void PortKeeper::watch_vhost_link(Instant now) {
  // Each event says that a peer has come or gone, even if the link is up again by now. The count is read before the
  // state: a change in between is one more event.
  const unsigned events = link_events_.load(std::memory_order_acquire);
  const bool is_up = device_.link_is_up();
  if (events != seen_link_events_) {
    seen_link_events_ = events;
    port_->lose_link(is_up);
    meeting_ = is_up;
    looks_ = 0;
  }
  if (!meeting_) return;
  if (is_up && device_.peer_takes_frames()) {
    meeting_ = false;
    port_->renew(describe(true));  // the new peer may know other offloads
  } else {
    due_ = now + (looks_++ < kQuickLooks ? kMeetInterval : kSlowMeetInterval);
  }
}

Instant PortKeeper::step(Instant now) {
  pool_->grow();
  if (phase_ == Phase::kUp) watch_link(now);
  if (phase_ == Phase::kUp) tell_interrupt();
  if (phase_ == Phase::kStopping) finish_stopping(now);
  if (phase_ == Phase::kAbsent && now >= due_) plan_.role == Role::kVirtio ? try_virtio(now) : try_card(now);
  if (phase_ == Phase::kAbsent || meeting_) return due_;
  const bool dark = plan_.role == Role::kOther && port_->link() == LinkState::kDown;
  return now + (dark ? kDarkLookInterval : kLookInterval);
}

// --- The end

void PortKeeper::close_device() {
  // Closing asks the peer for its ring positions, and would wait for a peer that is stopped. So the connection is cut
  // first.
  if (plan_.role == Role::kVirtio) shut_client_down(plan_.path);
  unfollow_reads(device_.interrupt_descriptor());
  device_.close();
  if (plan_.role == Role::kVhost) poke_vhost_thread();
}

void PortKeeper::close() {
  if (port_ != nullptr) port_->set_link(false);
  close_device();
  port_.reset();
  gather_.reset();
  pool_.reset();
}

}  // namespace bypass::dpdk
