// FlowRules: the steering rules of a queue pair on an interface that the kernel keeps. There is one rule for a flow,
// however many sockets share the flow.
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

/// Sockets ask for flows whether the device is there or not. The device comes and goes on its own thread, which calls
/// only begin() and destroy(). Calls of add(), remove() and suspend() come one at a time (the shard's lock). No call
/// waits for more than one rule of another thread.
class FlowRules {
 public:
  FlowRules() = default;
  FlowRules(const FlowRules&) = delete;
  FlowRules& operator=(const FlowRules&) = delete;
  ~FlowRules() { destroy(); }

  /// Steers IPv4 frames of that flow to the queue pair. True also while there is no queue pair, or while its device is
  /// lost (EIO, ENODEV): begin() makes the rule then. False with errno: the device refuses (ENOTSUP), or another
  /// process has the flow (EBUSY).
  /// The request counts until remove() in either case: the next add() of the flow, and begin(), ask the device again.
  bool add(const FlowSpec& flow);
  /// Takes one user of the rule away. With its last user, the rule goes, and none will be made. False: no user has
  /// added the flow.
  bool remove(const FlowSpec& flow);

  /// There is a queue pair now, on the device's port with that number, for frames to `mac`. Makes the rules; no device
  /// call runs under the lock. Returns how many rules the device refuses that no add() has reported yet.
  std::size_t begin(ibv_qp* queue, std::uint8_t number, const MacAddress& mac);
  /// Asks the device for no rule any more, until begin().
  void suspend();
  /// The same, and also takes all rules away. They are remembered for begin().
  void destroy();
  [[nodiscard]] std::size_t size() const;
  /// The flows that are asked for and not refused.
  [[nodiscard]] std::vector<FlowSpec> steered() const;
  /// Whether steered() has that flow.
  [[nodiscard]] bool is_steered(const FlowSpec& flow) const;

 private:
  struct Rule {
    ibv_flow* made = nullptr;
    unsigned users = 0;
    bool refused = false;        // the device refused the rule, and this has been reported
    std::atomic<int> taken = 0;  // the device's thread makes the rule or takes it away, without the lock
  };

  /// Does something with the device for a rule, without the lock. The rule stays.
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
