#include "stack/frame/flow_log.h"

#include <algorithm>
#include <memory>

namespace bypass {

bool FlowLog::note(const FlowSpec& flow, bool add) {
  if (!active_) return false;
  if (count_ != 0 && changes_[count_ - 1].flow == flow && changes_[count_ - 1].add != add) {
    count_--;
    return true;
  }
  if (count_ == room_ && !grow()) {
    counters_.steer_lost++;
    return false;
  }
  changes_[count_] = {flow, add};
  count_++;
  return true;
}

bool FlowLog::grow() {
  const std::size_t room = room_ == 0 ? 64 : room_ * 2;
  auto* const larger = static_cast<FlowChange*>(memory_.allocate(room * sizeof(FlowChange)));
  if (larger == nullptr) return false;
  std::uninitialized_copy_n(changes_, count_, larger);
  FlowChange* const smaller = changes_;
  changes_ = larger;
  room_ = room;
  if (smaller != nullptr) memory_.release(smaller);
  return true;
}

void FlowLog::rebuild() {
  if (changes_ == nullptr || memory_.mark_in_use(changes_)) return;
  changes_ = nullptr;  // the block was being made when the process died, so it is lost
  count_ = room_ = 0;
}

}  // namespace bypass
