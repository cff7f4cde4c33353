#include "softverbs/engine/wire/neighbours.h"

#include <algorithm>

namespace bypass::rdma {

using State = NeighbourEntry::State;

NeighbourEntry* Neighbours::find(const IpAddress& address) {
  for (std::uint16_t i = 0; i < used_; i++)
    if (entries_[i].state != State::kFree && entries_[i].address == address) return &entries_[i];
  return nullptr;
}

NeighbourEntry* Neighbours::find_or_add(const IpAddress& address) {
  if (NeighbourEntry* entry = find(address)) return entry;
  NeighbourEntry* place = nullptr;
  if (used_ < kSize) {
    place = &entries_[used_++];
  } else {
    // Looks for an entry that no path holds, in turn.
    for (std::uint16_t i = 0; i < kSize && place == nullptr; i++) {
      NeighbourEntry& candidate = entries_[hint_++ % kSize];
      if (candidate.paths == 0 && !candidate.fixed) place = &candidate;
    }
    if (place == nullptr) return nullptr;
  }
  *place = NeighbourEntry{};
  place->address = address;
  place->state = State::kFailed;  // nothing is known, and nothing was asked
  return place;
}

std::uint16_t Neighbours::hold(const IpAddress& address) {
  NeighbourEntry* entry = find_or_add(address);
  if (entry == nullptr) return kSize;
  entry->paths++;
  if (entry->state == State::kKnown) next_ = std::min(next_, entry->due);
  return static_cast<std::uint16_t>(entry - entries_.data());
}

void Neighbours::release(std::uint16_t place) {
  if (place < kSize) entries_[place].paths--;
}

void Neighbours::want(NeighbourEntry& entry, Instant now) {
  if (entry.state != State::kFailed) return;
  entry.state = State::kAsking;
  entry.questions = 0;
  entry.due = std::max(entry.due, now);  // for a failed entry, the pause after its last request is kept
  next_ = std::min(next_, entry.due);
}

void Neighbours::learn(NeighbourEntry& entry, const MacAddress& mac, Instant now) {
  if (entry.fixed) return;
  entry.mac = mac;
  entry.state = State::kKnown;
  entry.questions = 0;
  entry.due = now + kReachable;
  next_ = std::min(next_, entry.due);
}

// Sends one more request. A known entry stays in use meanwhile, and also if nobody answers: the peer may not answer ARP
// and still be there.
void Neighbours::step(NeighbourEntry& entry) {
  if (entry.questions < kQuestions) {
    entry.questions++;
    return;
  }
  entry.questions = 0;
  if (entry.state == State::kAsking) {
    entry.state = State::kFailed;
  } else {
    entry.due += kReachable;
  }
}

}  // namespace bypass::rdma
