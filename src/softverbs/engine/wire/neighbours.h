// Neighbours: the MAC addresses of neighbours. ARP (RFC 826), and the part of neighbour discovery (RFC 4861) that RoCE
// needs.
//
// A device is alone on its wire, so it asks and answers itself. The table is small and bounded. Names of places stay
// valid: an address that was once used keeps its place until the table is full of more recently used ones.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "stack/address.h"
#include "stack/time.h"

namespace bypass::rdma {

struct NeighbourEntry {
  enum class State : std::uint8_t { kFree, kAsking, kKnown, kFailed };
  IpAddress address;
  MacAddress mac;
  State state = State::kFree;
  bool fixed = false;     // set by the caller
  bool used = false;      // packets have gone there since the last farewell
  bool farewell = false;  // a farewell has asked it, and it has not answered
  std::uint8_t questions = 0;
  Instant due{};  // when to ask next, or when to confirm what is known
  std::uint32_t paths = 0;
};

class Neighbours {
 public:
  static constexpr std::uint16_t kSize = 1024;
  static constexpr std::uint8_t kQuestions = 3;
  static constexpr Duration kReachable = std::chrono::seconds{30};

  /// The place of an address, held by one more path; kSize if every place is in use.
  std::uint16_t hold(const IpAddress& address);
  void release(std::uint16_t place);
  [[nodiscard]] NeighbourEntry& operator[](std::uint16_t place) { return entries_[place]; }
  /// Null: it is not in the table.
  NeighbourEntry* find(const IpAddress& address);
  /// The same, with a new entry if needed; null if every place is held.
  NeighbourEntry* find_or_add(const IpAddress& address);

  /// Calls ask(entry) for each entry that must be asked for or confirmed, and for each that has just failed.
  template <typename F>
  void expire(Instant now, Duration retry, F&& ask) {
    if (now < next_) return;
    next_ = kNever;
    for (NeighbourEntry& entry : entries_) {
      if (entry.due <= now && wants_asking(entry)) {
        entry.due = now + retry;
        step(entry);
        ask(entry);
      }
      if (wants_asking(entry)) next_ = std::min(next_, entry.due);
    }
  }
  /// All entries that were ever used.
  [[nodiscard]] std::span<NeighbourEntry> entries() { return {entries_.data(), used_}; }
  [[nodiscard]] Instant next() const { return next_; }
  /// Asks at once, unless a request is under way; a failed entry is asked again at most once in `retry`.
  void want(NeighbourEntry& entry, Instant now);
  void learn(NeighbourEntry& entry, const MacAddress& mac, Instant now);

 private:
  static bool wants_asking(const NeighbourEntry& entry) {
    using State = NeighbourEntry::State;
    if (entry.fixed) return false;
    return entry.state == State::kAsking || (entry.state == State::kKnown && entry.paths != 0);
  }
  static void step(NeighbourEntry& entry);

  std::array<NeighbourEntry, kSize> entries_{};
  std::uint16_t used_ = 0;  // entries beyond this were never used
  std::uint16_t hint_ = 0;
  Instant next_ = kNever;
};

}  // namespace bypass::rdma
