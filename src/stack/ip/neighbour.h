// Neighbours: the cache of who has which MAC address, bounded, with the packets that wait for an answer.
//
// States follow RFC 4861 §7.3.2 (RFC 1122 §2.3.2.1 asks as much of ARP): an entry is reachable for a while,
// then stale; the first use of a stale one asks again while it goes on being used. This file holds the
// table; when to ask is arp.cc's.
//
// A path that holds a copy of an entry's MAC is valid as long as the generation stands still. It moves when a MAC
// that may have been copied changes or goes, and when an entry becomes stale: its users then come by once more,
// which is how use is noticed without a write for each packet sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stack/address.h"
#include "stack/frame/packet_list.h"
#include "stack/time.h"

namespace bypass {

enum class NeighbourState : std::uint8_t {
  kFree,
  kIncomplete,  // asked, no answer yet: packets wait
  kReachable,   // confirmed not long ago
  kStale,       // the MAC may be old: the next use asks
  kProbe,       // in use and being asked
  kFailed,      // did not answer; the next use asks anew
};

struct Neighbour {
  std::uint32_t address = 0;  // IPv4, host order
  std::uint16_t port = 0;
  NeighbourState state = NeighbourState::kFree;
  std::uint8_t attempts = 0;
  MacAddress mac;
  bool used = false;       // a path may hold a copy of the MAC
  bool wanted = false;     // we have sent there: hosts that only talk to us do not take its place
  std::uint16_t next = 0;  // of the hash chain, index + 1
  Instant confirmed{};
  PacketList waiting;

  [[nodiscard]] bool has_mac() const {
    return state == NeighbourState::kReachable || state == NeighbourState::kStale || state == NeighbourState::kProbe;
  }
};

class NeighbourTable {
 public:
  static constexpr std::size_t kSize = 512;
  /// Frames that wait for neighbours, all of them together: they are the port's.
  static constexpr std::uint32_t kMaxWaiting = 256;

  /// Places in the table are named by index + 1; 0 is none.
  [[nodiscard]] std::uint16_t find(std::uint16_t port, std::uint32_t address) const;
  /// A new entry for somebody we want to talk to; takes the place of the least useful one if need be. 0 when all
  /// are being asked.
  [[nodiscard]] std::uint16_t add_wanted(std::uint16_t port, std::uint32_t address);
  /// A new entry for somebody who talked to us; never takes the place of one that we send to
  /// (floods of forged senders).
  [[nodiscard]] std::uint16_t add_learned(std::uint16_t port, std::uint32_t address);
  /// Frees the entry. Its list of waiting packets must be empty.
  void remove(std::uint16_t name);

  [[nodiscard]] Neighbour& operator[](std::uint16_t name) { return entries_[name - 1U]; }
  [[nodiscard]] const Neighbour& operator[](std::uint16_t name) const { return entries_[name - 1U]; }

  void set_deadline(std::uint16_t name, Instant deadline);
  [[nodiscard]] Instant deadline(std::uint16_t name) const { return deadlines_[name - 1U]; }
  /// Not later than the earliest deadline.
  [[nodiscard]] Instant next_deadline() const { return next_deadline_; }
  /// Looks the earliest one up again: after those that were due have been dealt with.
  void refresh_next_deadline();

  [[nodiscard]] std::uint32_t generation() const { return generation_; }
  void bump_generation() { generation_++; }

  std::uint32_t total_waiting = 0;

  /// After a death inside the lock: empty again. Waiting frames are their ports' to take back.
  void clear();

 private:
  static constexpr std::size_t kBuckets = 256;
  static std::size_t bucket(std::uint16_t port, std::uint32_t address);
  std::uint16_t add(std::uint16_t name, std::uint16_t port, std::uint32_t address);
  // Of the entries with rank up to `worst`, the least useful, longest unconfirmed.
  [[nodiscard]] std::uint16_t victim(unsigned worst) const;

  std::array<std::uint16_t, kBuckets> buckets_{};
  std::array<Instant, kSize> deadlines_ = filled_with_never();
  std::array<Neighbour, kSize> entries_{};
  Instant next_deadline_ = kNever;
  std::uint32_t generation_ = 1;

  static constexpr std::array<Instant, kSize> filled_with_never() {
    std::array<Instant, kSize> all{};
    all.fill(kNever);
    return all;
  }
};

}  // namespace bypass
