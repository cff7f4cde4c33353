// FlowRules: the steering rules of a queue pair on an interface that the kernel keeps: one a flow, however many sockets
// share it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>

#include "stack/address.h"
#include "stack/flow_order.h"
#include "stack/port.h"

namespace bypass::verbs {

class FlowRules {
 public:
  FlowRules() = default;
  FlowRules(const FlowRules&) = delete;
  FlowRules& operator=(const FlowRules&) = delete;
  ~FlowRules() { destroy(); }

  /// IPv4 frames of that flow to `mac` come to the queue pair, on the device's port of that number. False with errno:
  /// the device refuses (ENOTSUP, EBUSY: another process has the flow), or it is lost (EIO, ENODEV). What is asked for
  /// counts until remove() either way, and is asked for again by the next who adds it and by remake().
  bool add(ibv_qp* queue, std::uint8_t number, const MacAddress& mac, const FlowSpec& flow);
  /// The last one who added it takes the rule away. False: nobody has added it.
  bool remove(const FlowSpec& flow);
  /// Takes all rules away, and remembers them for remake().
  void destroy();
  /// Makes them for a new queue pair. Returns how many the device refuses that no add() has said so of.
  std::size_t remake(ibv_qp* queue, std::uint8_t number, const MacAddress& mac);
  [[nodiscard]] std::size_t size() const { return rules_.size(); }

 private:
  struct Rule {
    ibv_flow* made = nullptr;
    unsigned users = 0;
    bool refused = false;  // and somebody has been told
  };
  std::map<FlowSpec, Rule, FlowOrder> rules_;
};

}  // namespace bypass::verbs
