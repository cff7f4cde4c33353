#include "softverbs/engine/memory_table.h"

#include <array>
#include <utility>

namespace bypass::rdma {
namespace {

// A permutation of 32 bits that nobody can compute without the secret: a Feistel network whose round function is
// SipHash.
std::uint32_t permute(const tcp::Secret& secret, std::uint32_t number) {
  constexpr std::uint16_t kRounds = 8;
  auto left = static_cast<std::uint16_t>(number >> 16), right = static_cast<std::uint16_t>(number);
  for (std::uint16_t round = 0; round < kRounds; round++) {
    const std::array<std::uint16_t, 2> input{round, right};
    const auto mixed = static_cast<std::uint16_t>(tcp::siphash24(secret, std::as_bytes(std::span(input))));
    left = std::exchange(right, static_cast<std::uint16_t>(left ^ mixed));
  }
  return std::uint32_t{left} << 16 | right;
}

}  // namespace

std::uint32_t MemoryTable::fresh_key() {
  for (;;) {
    const std::uint32_t key = permute(secret_, made_++);
    if (key != 0 && slots_[place_of(key)].key != key && !windows_.contains(place(key))) return key;
  }
}

// The slot of the key, or the empty slot where it would be put.
std::size_t MemoryTable::place_of(std::uint32_t key) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = key & mask;
  while (slots_[at].key != key && slots_[at].key != 0) at = (at + 1) & mask;
  return at;
}

void MemoryTable::put(std::unique_ptr<Mr> region) {
  Slot& slot = slots_[place_of(region->key)];
  slot.key = region->key;
  slot.region = std::move(region);
}

// Later keys move forward where possible: no key may have an empty slot before it.
std::unique_ptr<Mr> MemoryTable::take(std::uint32_t key) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = place_of(key);
  std::unique_ptr<Mr> taken = std::move(slots_[hole].region);
  for (std::size_t at = (hole + 1) & mask; slots_[at].key != 0; at = (at + 1) & mask) {
    const std::size_t moved = (at - slots_[at].key) & mask, gap = (at - hole) & mask;
    if (moved < gap) continue;
    slots_[hole] = std::move(slots_[at]);
    hole = at;
  }
  slots_[hole].key = 0;
  return taken;
}

void MemoryTable::grow() {
  std::vector<Slot> old(2 * slots_.size());
  std::swap(old, slots_);
  for (Slot& slot : old)
    if (slot.key != 0) put(std::move(slot.region));
}

Mr* MemoryTable::put_new(const Mr& region, std::uint32_t key) {
  if (2 * std::size_t{++count_} > slots_.size()) grow();
  auto made = std::make_unique<Mr>(region);
  Mr* const raw = made.get();
  made->key = key;
  put(std::move(made));
  return raw;
}

Mr* MemoryTable::add(const Mr& region) {
  return count_ >= max_ ? nullptr : put_new(region, fresh_key());
}

bool MemoryTable::is_free(std::uint32_t place) const {
  for (std::uint32_t low = 0; low < 256; low++)
    if (const std::uint32_t key = place << 8 | low; key == 0 || slots_[place_of(key)].key == key) return false;
  return true;
}

Mr* MemoryTable::add_window(Pd& pd, ibv_mw_type type) {
  if (count_ >= max_) return nullptr;
  std::uint32_t key = fresh_key();
  while (!is_free(place(key))) key = fresh_key();
  Mr window;
  window.pd = &pd;
  window.is_window = true;
  window.type = type;
  return windows_[place(key)] = put_new(window, key);
}

Mr* MemoryTable::window_at(std::uint32_t place) const {
  const auto at = windows_.find(place);
  return at == windows_.end() ? nullptr : at->second;
}

void MemoryTable::rekey_window(Mr& window, std::uint32_t key) {
  std::unique_ptr<Mr> same = take(window.key);
  same->key = key;
  put(std::move(same));
}

void MemoryTable::unbind(Mr& window) {
  if (window.region != nullptr) window.region->windows--;
  window.region = nullptr;
  window.qpn = 0;
}

void MemoryTable::unbind_all(std::uint32_t qpn) {
  for (const auto& [place, window] : windows_)
    if (window->qpn == qpn) unbind(*window);
}

Mr* MemoryTable::region(std::uint32_t key) const {
  Mr* const mr = slots_[place_of(key)].region.get();
  return mr == nullptr || mr->is_window ? nullptr : mr;
}

void MemoryTable::remove(Mr& region) {
  if (region.is_window) {
    unbind(region);
    windows_.erase(place(region.key));
  }
  static_cast<void>(take(region.key));
  count_--;
}

void MemoryTable::rekey(Mr& region) {
  std::unique_ptr<Mr> same = take(region.key);
  same->key = fresh_key();
  put(std::move(same));
}

namespace {

std::byte* find_in(const Mr& mr, const Pd& pd, std::uint64_t address, std::uint64_t len, unsigned access) {
  if (mr.pd != &pd || (mr.access & access) != access) return nullptr;
  const std::uint64_t offset = address - mr.iova;  // huge for an address below the region
  if (offset > mr.length || len > mr.length - offset) return nullptr;
  return mr.addr + offset;
}

}  // namespace

std::byte* MemoryTable::find(const Pd& pd, std::uint32_t key, std::uint64_t address, std::uint64_t len,
                             unsigned access) const {
  const Mr* mr = slots_[place_of(key)].region.get();
  return mr == nullptr || mr->is_window ? nullptr : find_in(*mr, pd, address, len, access);
}

std::byte* MemoryTable::find_remote(const Pd& pd, std::uint32_t qpn, std::uint32_t key, std::uint64_t address,
                                    std::uint64_t len, unsigned access) const {
  const Mr* mr = slots_[place_of(key)].region.get();
  if (mr == nullptr) return nullptr;
  const bool usable = !mr->is_window || (mr->region != nullptr && (mr->type == IBV_MW_TYPE_1 || mr->qpn == qpn));
  return usable ? find_in(*mr, pd, address, len, access) : nullptr;
}

bool MemoryTable::covers(const Pd& pd, std::span<const ibv_sge> sges, unsigned access) const {
  for (const ibv_sge& sge : sges)
    if (sge.length != 0 && find(pd, sge.lkey, sge.addr, sge.length, access) == nullptr) return false;
  return true;
}

}  // namespace bypass::rdma
