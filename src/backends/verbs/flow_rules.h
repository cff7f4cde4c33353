// FlowRules: the steering rules of a queue pair on an interface that the kernel keeps: one a flow, however many sockets
// share it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "stack/address.h"
#include "stack/frame/flow_order.h"
#include "stack/frame/port.h"

namespace bypass::verbs {

/// Sockets ask for flows whether the device is there or not; it comes and goes on the device's thread, which calls
/// begin() and destroy() only; calls of add(), remove() and suspend() come one at a time (the shard's lock). No call
/// waits for more than one rule of another thread's.
class FlowRules {
 public:
  FlowRules() = default;
  FlowRules(const FlowRules&) = delete;
  FlowRules& operator=(const FlowRules&) = delete;
  ~FlowRules() { destroy(); }

  /// IPv4 frames of that flow come to the queue pair. True also while there is none, or its device is lost (EIO,
  /// ENODEV): begin() makes the rule. False with errno: the device refuses (ENOTSUP, EBUSY: another process has the
  /// flow). What is asked for counts until remove() either way, and is asked for again by the next who adds it and by
  /// begin().
  bool add(const FlowSpec& flow);
  /// The last one who added it takes the rule away: there is none any more then, and none will be made. False: nobody
  /// has added it.
  bool remove(const FlowSpec& flow);

  /// There is a queue pair, on the device's port of that number, and frames to `mac` are meant: makes the rules, and
  /// waits for none of it in the lock. Returns how many the device refuses that no add() has said so of.
  std::size_t begin(ibv_qp* queue, std::uint8_t number, const MacAddress& mac);
  /// The device is asked for no rule any more until begin().
  void suspend();
  /// The same, and takes all rules away. They are remembered for begin().
  void destroy();
  [[nodiscard]] std::size_t size() const;
  /// What is asked for and not refused.
  [[nodiscard]] std::vector<FlowSpec> steered() const;
  /// Whether that one is among them.
  [[nodiscard]] bool is_steered(const FlowSpec& flow) const;

 private:
  struct Rule {
    ibv_flow* made = nullptr;
    unsigned users = 0;
    bool refused = false;        // and somebody has been told
    std::atomic<int> taken = 0;  // the device's thread is making it, or takes it away, without the lock
  };

  /// Does something with the device for a rule, without the lock; the rule stays.
  template <typename Work>
  static void without_lock(std::unique_lock<std::mutex>& lock, Rule& rule, const Work& work);
  static void note(Rule& rule, ibv_flow* made, int error);

  mutable std::mutex mutex_;
  std::map<FlowSpec, Rule, FlowOrder> rules_;
  ibv_qp* queue_ = nullptr;
  std::uint8_t number_ = 0;
  MacAddress mac_;
};

}  // namespace bypass::verbs
