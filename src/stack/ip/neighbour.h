// Neighbours: the cache of MAC addresses, of limited size, with the packets that wait for an answer.
//
// States follow RFC 4861 §7.3.2 (RFC 1122 §2.3.2.1 asks as much of ARP): an entry is reachable for a while,
// then stale; the first use of a stale one asks again while it goes on being used. This file holds the
// table; when to ask is arp.cc's.
//
// A path that holds a copy of an entry's MAC is valid while the generation stays the same. The generation changes when
// a MAC that may have been copied changes or is removed, and when an entry becomes stale. Then the entry's users look
// it up once more. So use is noticed without a write for each packet sent.
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
  bool wanted = false;     // we have sent there: hosts that only send to us do not replace it
  std::uint16_t next = 0;  // index + 1 of the next entry in the hash chain
  Instant confirmed{};
  PacketList waiting;

  [[nodiscard]] bool has_mac() const {
    return state == NeighbourState::kReachable || state == NeighbourState::kStale || state == NeighbourState::kProbe;
  }
};

class NeighbourTable {
 public:
  static constexpr std::size_t kSize = 512;
  /// The most frames that wait for all neighbours together, as they belong to the port.
  static constexpr std::uint32_t kMaxWaiting = 256;

  /// Entries are named by index + 1; 0 means no entry.
  [[nodiscard]] std::uint16_t find(std::uint16_t port, std::uint32_t address) const;
  /// A new entry for a host that packets are to be sent to. It replaces the least useful entry if needed. 0 if all are
  /// being asked.
  [[nodiscard]] std::uint16_t add_wanted(std::uint16_t port, std::uint32_t address);
  /// A new entry for a host that has sent to us. It never replaces an entry that we send to (there may be floods of
  /// forged senders).
  [[nodiscard]] std::uint16_t add_learned(std::uint16_t port, std::uint32_t address);
  /// Frees the entry. Its list of waiting packets must be empty.
  void remove(std::uint16_t name);

  [[nodiscard]] Neighbour& operator[](std::uint16_t name) { return entries_[name - 1U]; }
  [[nodiscard]] const Neighbour& operator[](std::uint16_t name) const { return entries_[name - 1U]; }

  void set_deadline(std::uint16_t name, Instant deadline);
  [[nodiscard]] Instant deadline(std::uint16_t name) const { return deadlines_[name - 1U]; }
  /// Not later than the earliest deadline.
  [[nodiscard]] Instant next_deadline() const { return next_deadline_; }
  /// Finds the earliest deadline again, after the entries that were due have been handled.
  void refresh_next_deadline();

  [[nodiscard]] std::uint32_t generation() const { return generation_; }
  void bump_generation() { generation_++; }

  std::uint32_t total_waiting = 0;

  /// After a death inside the lock: empties the table. The ports take back the waiting frames.
  void clear();

 private:
  static constexpr std::size_t kBuckets = 256;
  static std::size_t bucket(std::uint16_t port, std::uint32_t address);
  std::uint16_t add(std::uint16_t name, std::uint16_t port, std::uint32_t address);
  // Among the entries with rank up to `worst`, the least useful one that was unconfirmed longest.
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
