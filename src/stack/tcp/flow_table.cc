#include "stack/tcp/flow_table.h"

#include <algorithm>
#include <atomic>

#include "stack/tcp/open/time_wait.h"
#include "stack/tcp/tcb.h"

namespace bypass::tcp {
namespace {

struct Addresses {
  const IpAddress& local;
  const IpAddress& remote;
};

Addresses addresses_of(const FlowNode& node) {
  const char* at = reinterpret_cast<const char*>(&node);
  if (node.kind == FlowKind::kTcb) {
    const Path& path = reinterpret_cast<const Tcb*>(at - offsetof(Tcb, flow))->path;
    return {path.local, path.remote};
  }
  const auto& tw = *reinterpret_cast<const TimeWait*>(at - offsetof(TimeWait, flow));
  return {tw.local, tw.remote};
}

}  // namespace

bool FlowTable::create(Memory& memory, std::uint64_t seed0, std::uint64_t seed1) {
  seed_[0] = seed0 | 1;
  seed_[1] = seed1 | 1;
  return take_first_block(memory);
}

bool FlowTable::rebuild(Memory& memory) {
  if (!memory.mark_in_use(buckets_) || memory.size_of(buckets_) < (mask_ + 1) * sizeof(FlowNode*))
    return take_first_block(memory);
  clear();
  return true;
}

bool FlowTable::take_first_block(Memory& memory) {
  buckets_ = static_cast<FlowNode**>(memory.allocate(kFirstBuckets * sizeof(FlowNode*)));
  if (buckets_ == nullptr) return false;
  mask_ = kFirstBuckets - 1;
  clear();
  return true;
}

void FlowTable::clear() {
  std::fill(buckets_, buckets_ + mask_ + 1, nullptr);
  size_ = 0;
}

FlowNode* FlowTable::find(const FlowKey& key, std::uint32_t h) const {
  for (FlowNode* node = buckets_[h & mask_]; node != nullptr; node = node->next) {
    if (node->hash != h || node->local_port != key.local_port || node->remote_port != key.remote_port) continue;
    const Addresses a = addresses_of(*node);
    if (a.remote == key.remote && a.local == key.local) return node;
  }
  return nullptr;
}

void FlowTable::insert(Memory& memory, FlowNode& node, const FlowKey& key) {
  if (size_ > mask_) grow(memory);
  node.hash = hash(key);
  node.local_port = key.local_port;
  node.remote_port = key.remote_port;
  FlowNode*& head = buckets_[node.hash & mask_];
  node.next = head;
  head = &node;
  size_++;
}

void FlowTable::erase(FlowNode& node) {
  for (FlowNode** at = &buckets_[node.hash & mask_]; *at != nullptr; at = &(*at)->next) {
    if (*at != &node) continue;
    *at = node.next;
    node.next = nullptr;
    size_--;
    return;
  }
}

// If there is no memory for a larger table, the chains get longer.
void FlowTable::grow(Memory& memory) {
  const std::size_t old_count = mask_ + 1, count = old_count * 2;
  if (count * sizeof(FlowNode*) > kMaxBlock) return;
  auto** larger = static_cast<FlowNode**>(memory.allocate(count * sizeof(FlowNode*)));
  if (larger == nullptr) return;
  std::fill(larger, larger + count, nullptr);
  for (std::size_t i = 0; i < old_count; i++) {
    for (FlowNode* node = buckets_[i]; node != nullptr;) {
      FlowNode* next = node->next;
      FlowNode*& head = larger[node->hash & (count - 1)];
      node->next = head;
      head = node;
      node = next;
    }
  }
  // If the process dies in between, buckets_ must not name a block that is free.
  FlowNode** smaller = buckets_;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  buckets_ = larger;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mask_ = count - 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  memory.release(smaller);
}

}  // namespace bypass::tcp
