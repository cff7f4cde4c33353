// PortSet, its fourth part: the ports around a fork, and the handovers (runtime/family/handovers.h) that keep a
// family's flows while the ports change hands.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/log/log.h"
#include "os/own/cancellation.h"
#include "os/own/in_handler.h"
#include "os/own/own_work.h"
#include "runtime/host.h"
#include "runtime/ports/port_set.h"
#include "runtime/ports/ports_lock.h"
#include "socket/policy.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

// The signal mask of the forking thread, which holds g_opening: a handler of the program may ask for the ports, too.
std::optional<sigset_t> g_fork_mask;

}  // namespace

// Lock held; this process is the owner.
void PortSet::keep_flows(socket::Shard& shard) {
  shard.wires().guarded_by.store(handovers_.id(), std::memory_order_release);
  if (handovers_.id() == 0) return;
  for (std::size_t i = 0; i < entries_.size(); i++) {
    const Entry& entry = entries_[i];
    std::string problem;
    if (!config_.ports[i].shared) continue;
    if (entry.port == nullptr) {  // nobody serves what the owner before had there
      handovers_.empty(i);
      continue;
    }
    if (entry.backend->keep_flows(entry.port, handovers_.of(i), problem)) continue;
    record_unguarded(config_.ports[i].interface, problem);
  }
}

void PortSet::record_unguarded(const std::string& interface, const std::string& why) {
  if (std::exchange(unguarded_told_, true)) return;
  const std::string text = interface + ": " + why;
  BYPASS_LOG_INFO("%s, so that a process's end may cost connections of others of its family", text.c_str());
  socket::policy.record_why(-1, static_cast<unsigned>(Reason::kUnguarded), text.c_str());
}

/// For a process that follows an owner.
void PortSet::look_whether_guarded(const socket::Wires& wires) {
  const auto found = std::ranges::find_if(config_.ports, [](const PortConfig& port) { return port.shared; });
  if (found == config_.ports.end()) return;
  if (handovers_.id() == 0 || handovers_.id() != wires.guarded_by.load(std::memory_order_acquire))
    record_unguarded(found->interface, "this process, or the one that has the wire, was forked without a socket there");
}

void PortSet::look_at_handovers(socket::Shard& shard) {
  const socket::Wires& wires = shard.wires();
  pthread_mutex_lock(&g_opening);
  const bool others =
      wires.open.load(std::memory_order_acquire) && wires.guarded_by.load(std::memory_order_acquire) != handovers_.id();
  if (others) handovers_.drop();
  pthread_mutex_unlock(&g_opening);
}

void PortSet::hold_for_fork(socket::Shard& shard) {
  const sigset_t all = all_but_faults();
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_mutex_lock(&g_opening);
  g_fork_mask = before;
  make_handovers(shard);
}

// With g_opening held.
void PortSet::make_handovers(socket::Shard& shard) {
  const auto is_shared = [](const PortConfig& port) { return port.shared; };
  if (handovers_.id() != 0 || std::ranges::none_of(config_.ports, is_shared) || socket::is_in_handler()) return;
  std::vector<bool> shared;
  for (const PortConfig& port : config_.ports) shared.push_back(port.shared);
  const Inside inside;
  socket::Guard guard(shard);
  handovers_.make(shared, ++shard.wires().handovers);
  if (opened() && !following()) keep_flows(shard);
}

void PortSet::let_go_after_fork() {
  const std::optional<sigset_t> before = std::exchange(g_fork_mask, std::nullopt);
  pthread_mutex_unlock(&g_opening);
  if (before) pthread_sigmask(SIG_SETMASK, &*before, nullptr);
}

void PortSet::drop_in_child() {
  plugins_.drop_in_child();
  if (shm_links_ != nullptr) shm_links_.release()->abandon();
  if (socket::is_in_handler())
    new (&entries_) std::vector<Entry>;  // the old contents are not freed, as nothing may be freed here
  else
    entries_.clear();
  unguarded_told_ = false;
  missed_ = kept_ = false;
  following_.store(false, std::memory_order_relaxed);
  state_.store(State::kClosed, std::memory_order_relaxed);
  pthread_mutex_init(&g_opening, nullptr);  // it was held for the fork
  pthread_mutex_init(&g_looking, nullptr);
  network_.forget_threads();
  watch_.forget();
  const std::optional<sigset_t> before = std::exchange(g_fork_mask, std::nullopt);
  if (before) pthread_sigmask(SIG_SETMASK, &*before, nullptr);
}

void PortSet::keep_plugins_alone() {
  plugins_.protect_descriptors(false);
  unguarded_told_ = false;
  watch_.forget();
}

}  // namespace bypass::runtime
