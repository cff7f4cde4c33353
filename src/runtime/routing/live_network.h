// LiveNetwork: the ports' addresses and routes as they are now. The configuration has them as they were; of ports that
// share an interface with the kernel they change (KernelWatch).
//
// Read by any thread, also in a signal handler, without a lock or a wait: readers have a whole state that nobody
// changes, and the next one takes its place. A process's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/config.h"

namespace bypass::runtime {

/// Of what may change of a port.
bool is_same_network(const PortConfig& a, const PortConfig& b);

class LiveNetwork {
 public:
  explicit LiveNetwork(const Config& config);
  ~LiveNetwork();
  LiveNetwork(const LiveNetwork&) = delete;
  LiveNetwork& operator=(const LiveNetwork&) = delete;

  /// One look; what it shows stays while it lives.
  class Reading {
   public:
    explicit Reading(const LiveNetwork& network) : network_(network.changes_ ? &network : nullptr) {
      // Before the pointer is read, as replace() looks at the count behind writing it: a reader of what it has replaced
      // is seen.
      if (network_ != nullptr) network_->readers_.fetch_add(1, std::memory_order_seq_cst);
      now_ = network.now_.load(std::memory_order_seq_cst);
    }
    ~Reading() {
      if (network_ != nullptr) network_->readers_.fetch_sub(1, std::memory_order_release);
    }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    const PortNetwork& operator*() const { return *now_; }
    const PortNetwork* operator->() const { return now_; }

   private:
    const LiveNetwork* network_;
    const PortNetwork* now_;
  };

  /// Whether it may change at all.
  [[nodiscard]] bool changes() const { return changes_; }
  /// False: it is what it was. One caller at a time.
  bool replace(PortNetwork next);
  /// In a forked child: its parent's other threads do not read here, and one of them may have been in replace().
  void forget_threads();

 private:
  const bool changes_;
  std::atomic<const PortNetwork*> now_;
  mutable std::atomic<std::uint32_t> readers_{0};
  std::vector<std::unique_ptr<const PortNetwork>> replaced_;  // that somebody may be reading
};

}  // namespace bypass::runtime
