// The simulated link: two ends joined in memory, in virtual time and from one seed, with injected faults.
//
// It does everything that an RC queue pair may do. Writes arrive in order after a delay. Bytes may lie in memory long
// before their message is polled. When the link dies, a random number of the last writes is lost. Some that arrived
// have changed memory without a message, and each end notices at its own time. With `reorder_lanes`, messages of
// different lanes overtake each other, as they do where completions of several queues are gathered.
// Tests: tests/fastpath/link_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "backends/sim/sim_wire.h"
#include "fastpath/link/link.h"
#include "stack/time.h"

namespace bypass::fastpath::sim {

struct LinkConfig {
  std::size_t memory_bytes = std::size_t{1} << 20;  // of each end
  std::size_t queue = 64;                           // writes under way that an end takes
  Duration delay = Duration{2'000}, jitter{};
  Duration notice = Duration{100'000};  // the longest time until an end learns of a death
  Duration drain = Duration{20'000};    // the longest time after that until the end is drained
  bool reorder_lanes = false;
};

class SimLink;

/// Both ends, and what is under way between them.
class Cable {
 public:
  Cable(std::uint64_t seed, const LinkConfig& config);
  ~Cable();

  [[nodiscard]] SimLink& end(std::size_t i) { return *ends_[i]; }
  [[nodiscard]] Instant now() const { return now_; }
  /// Lets the writes that are due take effect.
  void advance(Instant now);
  /// The next time at which advance() does something; kNever.
  [[nodiscard]] Instant next_event() const;

  /// Kills the link now, and loses what is under way.
  void kill();
  /// Kills the link when `writes` more have been posted (at either end, in the middle of a batch).
  void kill_after(std::uint64_t writes) { writes_left_ = writes; }
  [[nodiscard]] bool dead() const { return dead_; }
  /// Number of writes so far, of both ends.
  [[nodiscard]] std::uint64_t posted() const { return posted_; }

 private:
  friend class SimLink;
  struct Flight {
    Instant at;
    std::uint64_t to;
    std::vector<std::byte> bytes;
    bool notify;
    std::uint32_t immediate;
    std::uint16_t last_of;
  };
  void take(std::size_t from, const Write& write);
  void deliver(std::size_t to, const Flight& flight, bool with_message);
  void lose(std::size_t to);

  LinkConfig config_;
  bypass::sim::Random random_;
  Instant now_{};
  std::unique_ptr<SimLink> ends_[2];
  std::deque<Flight> flights_[2];  // towards an end
  std::uint64_t writes_left_ = UINT64_MAX, posted_ = 0;
  bool dead_ = false;
};

class SimLink final : public Link {
 public:
  SimLink(Cable& cable, std::size_t index)
      : cable_(cable), index_(index), own_(cable.config_.memory_bytes), memory_(own_) {}

  [[nodiscard]] LinkState state() const override;
  [[nodiscard]] std::size_t room() const override;
  void post(std::span<const Write> batch) override;
  std::size_t poll(std::span<Arrival> out) override;
  bool arm() override { return !arrivals_.empty(); }
  void fail() override;
  [[nodiscard]] std::span<const std::byte> memory() const override { return memory_; }

  /// To be called before the first write: the peer then writes the caller's memory instead of the link's own.
  void use_memory(std::span<std::byte> memory) { memory_ = memory; }
  /// For a hostile peer: the memory that it may write at any time.
  [[nodiscard]] std::span<std::byte> writable_memory() { return memory_; }
  void inject(const Arrival& arrival) { arrivals_.push_back(arrival); }
  /// The device waits for acknowledgements that the peer keeps back, until told otherwise.
  void hold_completions(bool on);

 private:
  friend class Cable;
  void add_arrival(const Arrival& arrival);
  void complete(std::uint16_t lane);

  Cable& cable_;
  std::size_t index_;
  std::vector<std::byte> own_;
  std::span<std::byte> memory_;
  std::deque<Arrival> arrivals_, held_;
  bool holds_ = false;
  Instant fails_at_ = kNever, drained_at_ = kNever;
};

}  // namespace bypass::fastpath::sim
