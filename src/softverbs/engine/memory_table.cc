#include "softverbs/engine/memory_table.h"

namespace bypass::rdma {

// The same key comes again after 65535 registrations at the soonest.
std::uint32_t MemoryTable::fresh_key(std::uint32_t index) {
  if (++generation_ == 0) generation_ = 1;  // no key is 0
  return std::uint32_t{generation_} << kIndexBits | index;
}

Mr* MemoryTable::add(const Mr& region) {
  std::uint32_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else {
    if (slots_.size() >= max_) return nullptr;
    index = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  }
  slots_[index] = std::make_unique<Mr>(region);
  slots_[index]->key = fresh_key(index);
  return slots_[index].get();
}

void MemoryTable::remove(Mr& region) {
  const std::uint32_t index = region.key & ((1U << kIndexBits) - 1);
  slots_[index].reset();
  free_.push_back(index);
}

void MemoryTable::rekey(Mr& region) {
  region.key = fresh_key(region.key & ((1U << kIndexBits) - 1));
}

std::byte* MemoryTable::find(const Pd& pd, std::uint32_t key, std::uint64_t address, std::uint64_t len,
                             unsigned access) const {
  const std::uint32_t index = key & ((1U << kIndexBits) - 1);
  if (index >= slots_.size()) return nullptr;
  const Mr* mr = slots_[index].get();
  if (mr == nullptr || mr->key != key || mr->pd != &pd || (mr->access & access) != access) return nullptr;
  const std::uint64_t offset = address - mr->iova;  // of an address below: huge
  if (offset > mr->length || len > mr->length - offset) return nullptr;
  return mr->addr + offset;
}

bool MemoryTable::covers(const Pd& pd, std::span<const ibv_sge> sges, unsigned access) const {
  for (const ibv_sge& sge : sges)
    if (sge.length != 0 && find(pd, sge.lkey, sge.addr, sge.length, access) == nullptr) return false;
  return true;
}

}  // namespace bypass::rdma
