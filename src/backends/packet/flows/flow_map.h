// FlowMap: the flows that are steered to this process at a shared interface. They lie in a FlowTable, where the
// programs of steering_program.h look them up.
//
// Each process has its own map. Two processes that took the same flow would both answer its peers. So a rule for what
// arrives at one of our addresses belongs to one process, by a Claim. (Such a rule has no remote end, or is the rule
// for every frame.) A rule for one connection needs no claim, because the claim of its local port covers it; a claim
// would cost a descriptor for each connection.
#pragma once

#include <map>
#include <string>

#include "backends/packet/flows/claim.h"
#include "backends/packet/flows/flow_table.h"
#include "stack/frame/port.h"

namespace bypass::packet {

class FlowMap {
 public:
  /// Makes the map for the interface with that name. False with errno.
  bool create(const std::string& interface);
  /// False: the map cannot express the flow, it is steered already, another process has it (said in the log), or the
  /// map is full.
  bool steer(const FlowSpec& flow, bool add);
  [[nodiscard]] int descriptor() const { return table_.descriptor(); }

 private:
  bool add(const FlowKey& key, const FlowSpec& flow);
  bool remove(const FlowKey& key);

  std::string interface_;
  FlowTable table_;
  std::map<FlowKey, Claim> claims_;
};

}  // namespace bypass::packet
