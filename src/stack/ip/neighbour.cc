#include "stack/ip/neighbour.h"

#include <algorithm>

namespace bypass {
namespace {

// How valuable an entry is. Entries whose neighbour is being asked are never replaced.
enum Rank : unsigned { kFreeRank, kFailedRank, kUnusedRank, kStaleRank, kReachableRank, kAskedRank };

Rank rank(const Neighbour& n) {
  switch (n.state) {
    case NeighbourState::kFree:
      return kFreeRank;
    case NeighbourState::kFailed:
      return kFailedRank;
    case NeighbourState::kStale:
      return n.used || n.wanted ? kStaleRank : kUnusedRank;
    case NeighbourState::kReachable:
    case NeighbourState::kProbe:
      return n.used || n.wanted ? kReachableRank : kUnusedRank;
    case NeighbourState::kIncomplete:
      break;
  }
  return kAskedRank;
}

}  // namespace

std::size_t NeighbourTable::bucket(std::uint16_t port, std::uint32_t address) {
  return ((address ^ port) * 0x9e3779b1U) >> 24;
}

std::uint16_t NeighbourTable::find(std::uint16_t port, std::uint32_t address) const {
  std::uint16_t name = buckets_[bucket(port, address)];
  while (name != 0 && ((*this)[name].address != address || (*this)[name].port != port)) name = (*this)[name].next;
  return name;
}

std::uint16_t NeighbourTable::victim(unsigned worst) const {
  std::uint16_t best = 0;
  unsigned best_rank = worst + 1;
  for (std::uint16_t name = 1; name <= kSize; name++) {
    const Neighbour& n = (*this)[name];
    const unsigned r = rank(n);
    if (r > best_rank || r > worst) continue;
    if (r < best_rank || n.confirmed < (*this)[best].confirmed) {
      best = name;
      best_rank = r;
    }
    if (r == kFreeRank) break;
  }
  return best;
}

std::uint16_t NeighbourTable::add(std::uint16_t name, std::uint16_t port, std::uint32_t address) {
  if (name == 0) return 0;
  if ((*this)[name].state != NeighbourState::kFree) remove(name);
  Neighbour& n = (*this)[name];
  n = Neighbour{};
  n.address = address;
  n.port = port;
  n.state = NeighbourState::kFailed;  // until the caller sets what it knows
  std::uint16_t& head = buckets_[bucket(port, address)];
  n.next = head;
  head = name;
  return name;
}

std::uint16_t NeighbourTable::add_wanted(std::uint16_t port, std::uint32_t address) {
  return add(victim(kReachableRank), port, address);
}

std::uint16_t NeighbourTable::add_learned(std::uint16_t port, std::uint32_t address) {
  return add(victim(kUnusedRank), port, address);
}

void NeighbourTable::remove(std::uint16_t name) {
  Neighbour& n = (*this)[name];
  if (n.has_mac() && n.used) bump_generation();
  std::uint16_t* link = &buckets_[bucket(n.port, n.address)];
  while (*link != name) link = &(*this)[*link].next;
  *link = n.next;
  n = Neighbour{};
  deadlines_[name - 1U] = kNever;
}

void NeighbourTable::set_deadline(std::uint16_t name, Instant deadline) {
  deadlines_[name - 1U] = deadline;
  next_deadline_ = std::min(next_deadline_, deadline);
}

void NeighbourTable::refresh_next_deadline() {
  next_deadline_ = *std::min_element(deadlines_.begin(), deadlines_.end());
}

void NeighbourTable::clear() {
  const std::uint32_t generation = generation_;
  *this = NeighbourTable{};
  generation_ = generation + 1;
}

}  // namespace bypass
