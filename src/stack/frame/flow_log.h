// FlowLog: what steering devices must still be told (Port::steer): flows that this stack has begun or ceased to serve.
// It lies in the arena: any process of the family makes flows, but only the ports' owner can tell the devices.
//
// Without a steering interface nothing is noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/counters.h"
#include "stack/frame/port.h"
#include "stack/memory/memory.h"

namespace bypass {

struct FlowChange {
  FlowSpec flow;  // a local address of "any" means every address of the steered interfaces
  bool add = false;
};

class FlowLog {
 public:
  FlowLog(Memory& memory, StackCounters& counters) : memory_(memory), counters_(counters) {}

  [[nodiscard]] bool active() const { return active_; }
  void set_active(bool active) { active_ = active; }

  /// Notes a change. If it cancels the change before it, nothing is left to tell. False: nothing was noted. Then nobody
  /// steers, or the arena has no room, which is counted (steer_lost): the kernel keeps that flow, and the flow's end
  /// must not be noted.
  [[nodiscard]] bool note(const FlowSpec& flow, bool add);
  /// The end of a flow whose beginning was noted.
  void note_end(const FlowSpec& flow) { (void)note(flow, false); }
  /// The changes in order, valid until clear().
  [[nodiscard]] std::span<const FlowChange> pending() const { return {changes_, count_}; }
  void clear() { count_ = 0; }

  /// To be called after a death, between Memory's begin_rebuild() and finish_rebuild(): keeps what was noted.
  void rebuild();

 private:
  [[nodiscard]] bool grow();

  Memory& memory_;
  StackCounters& counters_;
  FlowChange* changes_ = nullptr;
  std::size_t count_ = 0, room_ = 0;
  bool active_ = false;
};

}  // namespace bypass
