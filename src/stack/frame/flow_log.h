// FlowLog: what steering devices are still to be told (Port::steer): flows that this stack has begun to serve, or
// ceased to. Lies in the arena, because only the ports' owner can tell the devices, and any process of the family makes
// flows.
//
// Without an interface that steers nothing is noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/counters.h"
#include "stack/frame/port.h"
#include "stack/memory/memory.h"

namespace bypass {

struct FlowChange {
  FlowSpec flow;  // local address any: every address of the steered interfaces
  bool add = false;
};

class FlowLog {
 public:
  FlowLog(Memory& memory, StackCounters& counters) : memory_(memory), counters_(counters) {}

  [[nodiscard]] bool active() const { return active_; }
  void set_active(bool active) { active_ = active; }

  /// A change that takes the one before it back leaves nothing to tell. False: nothing is noted of it, nobody steers or
  /// the arena has no room, which is counted (steer_lost): the kernel keeps that flow, and its end is not to be noted.
  [[nodiscard]] bool note(const FlowSpec& flow, bool add);
  /// The end of a flow whose beginning was noted.
  void note_end(const FlowSpec& flow) { (void)note(flow, false); }
  /// In their order; until clear().
  [[nodiscard]] std::span<const FlowChange> pending() const { return {changes_, count_}; }
  void clear() { count_ = 0; }

  /// After a death, between Memory's begin_rebuild() and finish_rebuild(): what was noted stays.
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
