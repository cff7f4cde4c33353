// Two whole stacks. PeerLinks makes their links over a simulated device. This does what a process does with them,
// without sockets.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/link/peer_links.h"
#include "fastpath/setup/rc_record.h"
#include "fastpath/sim/sim_link.h"
#include "stack/world.h"

namespace bypass::fastpath::test {

using bypass::test::Host;
using bypass::test::HostConfig;
using bypass::test::World;
using namespace std::chrono_literals;

/// Cables between two devices, by the number in the request.
struct CableYard {
  std::uint64_t seed = 1;
  Mover mover = Mover::kRc;  // what its devices say that they are
  std::size_t queue = 64;    // writes under way that an end of a cable takes
  bool refuses = false;      // every request
  bool silent = false;       // no request is answered
  Duration proof{};          // between a request's being granted and the link's being up at who asked
  std::map<std::uint32_t, std::shared_ptr<sim::Cable>> cables;
  std::shared_ptr<sim::Cable> newest;

  void advance(Instant now) {
    for (auto& [id, cable] : cables) cable->advance(now);
  }
  [[nodiscard]] Instant next_event() const {
    Instant next = kNever;
    for (const auto& [id, cable] : cables) next = std::min(next, cable->next_event());
    return next;
  }
};

class SimDevice;

/// The exchange of link_device.h, over a cable of the yard.
class SimSetup final : public LinkSetup {
 public:
  SimSetup(CableYard& yard, std::size_t end, std::span<std::byte> memory) : yard_(yard), end_(end), memory_(memory) {}
  void request(std::uint32_t id);
  void answer(std::span<const std::byte> body);

  [[nodiscard]] SetupState state() const override { return state_; }
  [[nodiscard]] Reason reason() const override { return reason_; }
  [[nodiscard]] std::uint32_t id() const override { return id_; }
  void on_record(RecordType type, std::span<const std::byte> body) override;
  bool next_record(Record& record, std::span<std::byte> body) override;
  void on_lane_offered() override;
  void poll(Instant now) override;
  [[nodiscard]] int wait_descriptor() const override { return -1; }
  [[nodiscard]] Instant next_timeout() const override { return proven_; }
  [[nodiscard]] Link& link() override { return cable_->end(end_); }
  [[nodiscard]] std::uint32_t window() const override { return 64; }
  [[nodiscard]] std::uint64_t peer_memory() const override { return memory_.size(); }
  void give_up() override { given_up = true; }
  [[nodiscard]] std::span<const std::byte> memory() const { return memory_; }
  bool given_up = false;

 private:
  void say(RecordType type, Reason reason = Reason::kNone);

  CableYard& yard_;
  std::size_t end_;
  std::span<std::byte> memory_;
  std::shared_ptr<sim::Cable> cable_;
  std::deque<std::pair<RecordType, LinkHead>> due_;
  std::uint32_t id_ = 0;
  Reason reason_ = Reason::kNone;
  SetupState state_ = SetupState::kUnderWay;
  bool granted_ = false;
  Instant proven_ = kNever;
};

class SimDevice final : public LinkDevice {
 public:
  SimDevice(CableYard& yard, std::size_t end) : yard_(yard), end_(end) {}

  [[nodiscard]] Mover mover() const override { return yard_.mover; }
  bool add_memory(std::span<const std::byte> range, const char*&) override {
    registered_ += range.size();
    return true;
  }
  void remove_memory(std::span<const std::byte>) override {}
  LinkSetup* request(std::uint32_t id, std::span<std::byte> memory, const IpAddress&, Instant) override;
  LinkSetup* answer(std::span<const std::byte> body, Reason, std::span<std::byte> memory, const IpAddress&,
                    Instant) override;
  void close(LinkSetup* setup) override {
    std::erase_if(setups_, [setup](const auto& each) { return each.get() == setup; });
  }
  bool gone(std::span<const std::byte>) override { return true; }
  [[nodiscard]] int descriptor() const override { return -1; }
  void attend() override {}
  [[nodiscard]] bool lost() const override { return false; }

  [[nodiscard]] std::size_t setups() const { return setups_.size(); }
  [[nodiscard]] std::uint64_t registered() const { return registered_; }

 private:
  CableYard& yard_;
  std::size_t end_;
  std::vector<std::unique_ptr<SimSetup>> setups_;
  std::uint64_t registered_ = 0;
};

class PeerWorld {
 public:
  static constexpr std::uint8_t kBoth = kCapRoce | kCapShm;
  /// `places`: what the stacks' tags say about where they are. `capabilities`: which devices they have.
  explicit PeerWorld(std::uint64_t seed = 1, std::uint32_t link_memory = LinkLayout::kLeast,
                     std::array<std::uint32_t, 2> places = {},
                     std::array<std::uint8_t, 2> capabilities = {kBoth, kBoth});

  struct Connection {
    std::array<tcp::Tcb*, 2> tcb{};
    std::array<char, 2> user{};  // events come under these addresses
  };

  /// A new owner takes the device of host `i`.
  void begin_ownership(std::size_t i) {
    links_[i]->owner().begin_ownership(host(i).ctx());
    if (preferred[i] != nullptr) links_[i]->owner().add_device(0, *preferred[i]);
    if (has_cables[i]) links_[i]->owner().add_device(0, *devices_[i]);
  }
  /// Put in front of what a host has, before its first connection.
  void prefer(std::size_t i, LinkDevice& device) {
    preferred[i] = &device;
    links_[i]->owner().drop_devices(host(i).ctx());
    begin_ownership(i);
  }
  /// Host 0 connects to host 1.
  Connection& open() {
    Connection& c = connect();
    accept(c);
    return c;
  }
  /// The two halves of connect(). Connections are accepted in the order in which they began.
  Connection& connect();
  void accept(Connection& c);
  bool run_until(const std::function<bool()>& done, Duration limit = 10s);
  void run_for(Duration time) {
    run_until([] { return false; }, time);
  }
  std::string read(Connection& c, std::size_t side);
  std::size_t write(Connection& c, std::size_t side, std::span<const std::byte> bytes);
  void shutdown(Connection& c, std::size_t side);
  void close(Connection& c, std::size_t side);
  void abort(Connection& c, std::size_t side);
  /// Sends `bytes` of a pattern from one side to the other, and calls `meanwhile` at every turn. Returns what arrived.
  bool transfer(Connection& c, std::size_t from, std::size_t bytes, const std::function<void()>& meanwhile = {});

  Host& host(std::size_t i) { return world_.host(i); }
  PeerLinks& links(std::size_t i) { return *links_[i]; }
  SimDevice& device(std::size_t i) { return *devices_[i]; }
  /// The only link of host `i`; null: there is none.
  const PeerLink* link(std::size_t i);
  [[nodiscard]] Framed* framed(Connection& c, std::size_t i) {
    return c.tcb[i] != nullptr && FramedTcp::has(*c.tcb[i]) ? &FramedTcp::of(*c.tcb[i]) : nullptr;
  }
  /// Sends a little both ways until both directions are on a lane.
  bool reach_lane(Connection& c) {
    for (int i = 0; i < 200 && !on_lane(c); i++) {
      if (!transfer(c, i % 2, 100)) return false;
      run_for(100us);
    }
    return on_lane(c);
  }
  bool on_lane(Connection& c) {
    return framed(c, 0) != nullptr && framed(c, 1) != nullptr && framed(c, 0)->lane.tx_path() == TxPath::kLane &&
           framed(c, 1)->lane.tx_path() == TxPath::kLane;
  }
  World& world() { return world_; }
  CableYard yard;
  /// Tries every other read and write as a short call first, as src/socket does. Counts how many it tried.
  bool makes_short_calls = true;
  std::size_t short_reads = 0, short_writes = 0;
  /// For so many turns a host's process does not poll its links, because another process has the device.
  std::array<bool, 2> stopped{};
  std::array<LinkDevice*, 2> preferred{};
  /// What PeerLinks has reported of links, at either host.
  struct Note {
    IpAddress peer;
    Mover mover;
    PeerLink::Stage stage;
    Reason reason;
  };
  inline static std::vector<Note> notes;
  std::array<bool, 2> has_cables{true, true};  // the device of `yard`

 private:
  void turn();
  std::string short_read(tcp::Tcb& tcb, std::size_t side, std::size_t most);
  bool short_write(tcp::Tcb& tcb, std::size_t side, std::span<const std::byte> bytes);

  std::size_t reads_ = 0, writes_ = 0;
  World world_;
  std::array<std::unique_ptr<PeerLinks>, 2> links_;
  std::array<std::unique_ptr<SimDevice>, 2> devices_;
  tcp::Listener* listener_ = nullptr;
  char listener_user_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace bypass::fastpath::test
