// LiveNetwork: the ports' addresses and routes as they are now. The configuration has them as they were at the start.
// They change for ports that share an interface with the kernel (KernelWatch).
//
// Any thread may read, also in a signal handler, without a lock or a wait. A reader has a whole state that nobody
// changes; a change puts a new state in its place. It is private to a process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/config.h"

namespace bypass::runtime {

/// Compares what may change in a port.
bool is_same_network(const PortConfig& a, const PortConfig& b);

class LiveNetwork {
 public:
  explicit LiveNetwork(const Config& config);
  ~LiveNetwork();
  LiveNetwork(const LiveNetwork&) = delete;
  LiveNetwork& operator=(const LiveNetwork&) = delete;

  /// One look. What it shows stays valid while the Reading lives.
  class Reading {
   public:
    explicit Reading(const LiveNetwork& network) : network_(network.changes_ ? &network : nullptr) {
      // The reader is counted before it reads the pointer; replace() writes the pointer before it reads the count. So
      // replace() sees each reader that may still have the old state.
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

  /// Whether the state can change at all.
  [[nodiscard]] bool changes() const { return changes_; }
  /// False: `next` is equal to the present state. One caller at a time.
  bool replace(PortNetwork next);
  /// Called in a forked child. The parent's other threads do not read here, and one of them may have been inside
  /// replace().
  void forget_threads();

 private:
  const bool changes_;
  std::atomic<const PortNetwork*> now_;
  mutable std::atomic<std::uint32_t> readers_{0};
  std::vector<std::unique_ptr<const PortNetwork>> replaced_;  // old states that a reader may still have
};

}  // namespace bypass::runtime
