// The simulated wire: ports joined in memory, for tests. Two ports are a cable, more are a switch.
//
// Everything happens in virtual time, which the test sets (Wire::set_now), and from one seed, so that a run
// replays exactly. Frames can be lost, delayed, reordered, duplicated, corrupted and slowed down, by chance
// (Impairment) or one by one (Wire::set_filter). The ports check what a device cannot: a frame sent twice,
// freed twice, or inconsistent ends the program; freed buffers are poisoned under AddressSanitizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/sim/pcap.h"
#include "stack/frame/port.h"
#include "stack/time.h"

namespace bypass::sim {

using Bytes = std::vector<std::byte>;

/// Deterministic random numbers (SplitMix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// 0 … bound - 1.
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
  bool chance(double probability);

 private:
  std::uint64_t state_;
};

/// What happens to the frames that one port sends. Each probability is 0 to 1 for one frame.
struct Impairment {
  double loss = 0, duplicate = 0, corrupt = 0, reorder = 0;
  Duration delay{}, jitter{};                 // jitter: up to that much more delay; frames keep their order
  Duration reorder_delay = Duration{50'000};  // frames that follow within this time overtake a reordered frame
  std::uint64_t bits_per_second = 0;          // 0: no limit
  std::size_t queue_frames = 0;  // the queue in front of the limit; frames beyond it are lost. 0: the sender waits
};

struct PortConfig {
  MacAddress mac;
  PortCaps caps;
  std::size_t buffers = 2048;
  std::size_t tx_ring = 256;   // frames that wait for `bits_per_second` before send() refuses more
  std::size_t rx_ring = 1024;  // frames that wait for receive() before more are lost
  std::size_t rx_segment = 0;  // received frames come as chains with at most this many bytes a buffer, unevenly split
};

/// What a filter wants done with one frame.
struct Fate {
  unsigned copies = 1;  // 0: lost
  Duration delay{};     // in addition to the impairment's
};

class Wire;

class SimPort final : public Port {
 public:
  SimPort(Wire& wire, std::size_t index, const PortConfig& config);
  ~SimPort() override;

  using Port::set_scarce;

  [[nodiscard]] const PortCaps& caps() const override { return config_.caps; }
  [[nodiscard]] MacAddress mac() const override { return config_.mac; }
  [[nodiscard]] LinkState link() const override { return link_; }
  std::size_t receive(std::uint16_t queue, std::span<Packet*> out) override;
  std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) override;
  std::size_t alloc(std::uint16_t queue, std::span<Packet*> out) override;
  void free(std::span<Packet* const> frames) override;
  [[nodiscard]] int wait_descriptor(std::uint16_t) const override { return -1; }
  [[nodiscard]] std::uint32_t wait_generation() const override { return 0; }
  bool arm(std::uint16_t queue) override;
  void disarm(std::uint16_t) override {}
  [[nodiscard]] PortStats stats() const override;

  void set_link(LinkState link) { link_ = link; }
  /// The device is taken away, or is back.
  void set_gone(bool on) {
    stats_.gone = on;
    link_ = on ? LinkState::kDown : LinkState::kUp;
  }
  /// How many buffers are out. A test ends with 0 if nothing leaks.
  [[nodiscard]] std::size_t buffers_out() const { return slots_.size() - free_.size(); }
  [[nodiscard]] std::size_t index() const { return index_; }
  /// When the next frame arrives here; kNever if none is on its way.
  [[nodiscard]] Instant next_arrival() const;

 private:
  friend class Wire;
  struct Slot;
  struct Arrival {
    Instant at;
    std::uint64_t order;  // frames that arrive at the same time keep the order of sending
    Bytes bytes;
    std::uint16_t tso_mss;
  };
  void arrive(Arrival arrival);
  void fill_ring();
  Packet* to_packets(const Arrival& arrival);
  void note_checksums(Packet& head, const Bytes& bytes) const;
  Packet* take_slot();
  void put_slot(Packet* packet);
  Bytes gather(const Packet& head) const;
  [[nodiscard]] bool takes(const Packet& head) const;

  Wire& wire_;
  std::size_t index_;
  PortConfig config_;
  LinkState link_ = LinkState::kUp;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Packet*> free_;
  std::vector<Arrival> inbox_;  // a heap by (at, order)
  std::deque<Arrival> ring_;
  PortStats stats_;
};

class Wire {
 public:
  using Filter = std::function<Fate(std::size_t from, std::span<const std::byte> frame)>;
  using Rewrite = std::function<void(std::size_t from, Bytes& frame)>;

  explicit Wire(std::uint64_t seed = 1) : random_(seed) {}

  SimPort& add_port(const PortConfig& config);
  [[nodiscard]] SimPort& port(std::size_t index) { return *ports_[index]; }

  [[nodiscard]] Instant now() const { return now_; }
  void set_now(Instant now) { now_ = now; }
  /// The earliest arrival at any port.
  [[nodiscard]] Instant next_arrival() const;

  /// Sets the impairment for the frames that `from` sends.
  void set_impairment(std::size_t from, const Impairment& impairment);
  void set_impairment(const Impairment& impairment);
  /// The filter sees every frame as it is on the wire, after segmentation and before the impairment.
  void set_filter(Filter filter) { filter_ = std::move(filter); }
  /// Changes frames as something on the way would, before the filter sees them.
  void set_rewrite(Rewrite rewrite) { rewrite_ = std::move(rewrite); }
  /// Captures every frame that any port sends, also the lost ones.
  void capture_to(PcapWriter* writer) { capture_ = writer; }
  /// Delivers a frame that no port has sent to one port.
  void inject(std::size_t to, std::span<const std::byte> frame, Duration delay = {});

  Random& random() { return random_; }

 private:
  friend class SimPort;
  struct Lane {  // the sending side of one port
    Impairment impairment;
    Instant last_arrival{};          // jitter does not reorder
    std::deque<Instant> departures;  // when frames leave that the rate limit still holds
  };
  /// Whether the lane takes one more frame now (else the sender waits).
  [[nodiscard]] bool has_room(std::size_t from);
  void transmit(std::size_t from, Bytes frame, std::uint16_t tso_mss);
  void carry(std::size_t from, Bytes frame, std::uint16_t tso_mss, Duration more_delay);
  /// When the last bit leaves; kNever: the queue in front of the limit was full.
  Instant depart(Lane& lane, std::size_t bytes);
  void deliver(std::size_t from, Bytes frame, std::uint16_t tso_mss, Instant at);
  [[nodiscard]] bool receivers_take_large(std::size_t from) const;

  Instant now_{};
  std::uint64_t order_ = 0;
  Random random_;
  std::vector<std::unique_ptr<SimPort>> ports_;
  std::vector<Lane> lanes_;
  Filter filter_;
  Rewrite rewrite_;
  PcapWriter* capture_ = nullptr;
};

}  // namespace bypass::sim
