// Steering: decides which raw-packet queue pairs get a frame.
//
// Rules with the same mask and priority share a table. So a frame costs one look-up for each different mask, however
// many connections have a rule. The order is: priority, then the more specific mask, then the older rule.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "softverbs/engine/qp/requests.h"
#include "stack/frame/packet.h"
#include "stack/frame/port.h"

namespace bypass::rdma {

struct Qp;

struct Flow {
  Qp* qp = nullptr;
  FlowRule rule;
  std::vector<FlowSpec> steered;  // flows that the port steers for it
};

class Steering {
 public:
  using Key = FlowRule::Key;

  void add(Flow& flow);
  void remove(Flow& flow);
  [[nodiscard]] std::size_t size() const { return rules_; }
  [[nodiscard]] bool has_sniffers() const { return !sniffers_.empty(); }
  [[nodiscard]] const std::vector<Flow*>& sniffers() const { return sniffers_; }

  /// The fields of a frame that rules can match.
  static Key key_of(const Packet& frame);
  /// The fields that a rule matches. The default rules match whatever they apply to.
  static Key mask_of(const FlowRule& rule);
  /// Calls take(flow) for matching rules in order, until it returns false.
  template <typename F>
  void match(const Key& key, F&& take) const {
    for (const Table& table : tables_) {
      if (!table.applies(key)) continue;
      const auto found = table.rules.find(masked(key, table.mask));
      if (found == table.rules.end()) continue;
      for (Flow* flow : found->second)
        if (!take(*flow)) return;
    }
  }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  struct Table {
    std::uint16_t priority;
    unsigned bits;  // of the mask
    bool multicast_only;
    Key mask;
    std::unordered_map<Key, std::vector<Flow*>, Hash> rules;
    [[nodiscard]] bool applies(const Key& key) const { return !multicast_only || key.destination.is_multicast(); }
  };
  static Key masked(const Key& key, const Key& mask);
  static bool is_multicast_default(const FlowRule& rule) { return rule.type == IBV_FLOW_ATTR_MC_DEFAULT; }
  Table& table_for(const FlowRule& rule);

  std::vector<Table> tables_;
  std::vector<Flow*> sniffers_;
  std::size_t rules_ = 0;
};

}  // namespace bypass::rdma
