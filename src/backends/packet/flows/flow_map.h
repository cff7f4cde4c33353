// FlowMap: the flows that are steered to this process at a shared interface, in a FlowTable, where the programs of
// steering_program.h look them up.
//
// Each process has its own. Two that took the same flow would both answer its peers. So what is waited for at an
// address of ours (a rule without a remote end, or the one for every frame) is one process's, by a Claim. A rule of one
// connection rests on the one that chose its local port: a claim would cost a descriptor a connection.
#pragma once

#include <map>
#include <string>

#include "backends/packet/flows/claim.h"
#include "backends/packet/flows/flow_table.h"
#include "stack/frame/port.h"

namespace bypass::packet {

class FlowMap {
 public:
  /// For the interface of that name. False with errno.
  bool create(const std::string& interface);
  /// False: not to be expressed, steered already, another process's (said in the log), or one too many.
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
