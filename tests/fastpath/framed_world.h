// Two whole stacks on a simulated wire, whose connections may be framed, with lanes over a simulated link that dies by
// schedule. Programs write, read, half-close and close as a socket would have them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/framed/framed.h"
#include "fastpath/link/link_end.h"
#include "fastpath/sim/sim_link.h"
#include "stack/world.h"

namespace bypass::fastpath::test {

using bypass::test::Host;
using bypass::test::HostConfig;
using bypass::test::World;
using namespace std::chrono_literals;

struct SideConfig {
  bool capable = true;
  bool offers_lanes = true;
  std::uint32_t tag = 0;
  tcp::Options options{};
  HostConfig host{};
};

/// One host's links: one at a time, an end of the world's cable.
class TestLinks final : public Links {
 public:
  TestLinks(Host& host, const SideConfig& config, std::size_t end, std::uint64_t seed, std::uint32_t tcp_window)
      : host_(host),
        config_(config),
        end_(end),
        random_(seed),
        framed_(host.tcp(), {.handshake = {.tag = config.tag}, .tcp_window = tcp_window}, *this) {}

  FramedTcp& framed() { return framed_; }
  /// Makes a new link, with the same number at both ends.
  void connect(std::uint32_t id, const std::shared_ptr<sim::Cable>& cable);
  /// Takes messages, gives connections their turns, and writes.
  void turn(Instant now);
  /// Whether the current link is dead and nothing of it is needed any more.
  [[nodiscard]] bool idle() const;
  [[nodiscard]] const LinkEnd& end() const { return link_end_; }
  double cut_chance = 0.5, leave_chance = 0;
  unsigned cuts = 0;

  [[nodiscard]] bool wanted(const tcp::Tcb&, const SynOption*) override { return config_.capable; }
  [[nodiscard]] std::span<const std::byte> memory(std::uint32_t link) override;
  void on_change(Context& ctx, tcp::Tcb& tcb, Framed& framed) override;
  bool on_gone(Context& ctx, tcp::Tcb& tcb, Framed& framed) override;

 private:
  static constexpr std::size_t kLanes = 8;
  struct Place {
    tcp::Tcb* tcb = nullptr;
    std::unique_ptr<Lane> ghost;  // of a connection that has gone
    std::uint32_t tried = 0;
    bool listed = false;
  };
  struct Table {
    TestLinks& links;
    Lane* find(std::uint16_t number);
    ByteSource source(std::uint16_t number);
    template <typename F>
    void for_each(F&& f) {
      for (std::uint16_t i = 0; i < kLanes; i++)
        if (Lane* lane = find(i)) f(*lane);
    }
  };
  std::uint16_t number_of(tcp::Tcb& tcb);
  [[nodiscard]] LaneAddress address(std::uint16_t number) const;
  [[nodiscard]] bool up() const { return cable_ != nullptr && link_end_.state() == LinkState::kUp; }

  Host& host_;
  SideConfig config_;
  std::size_t end_;
  bypass::sim::Random random_;
  FramedTcp framed_;
  std::map<std::uint32_t, std::shared_ptr<sim::Cable>> cables_;  // old ones too: rings are read until they are empty
  std::shared_ptr<sim::Cable> cable_;
  std::uint32_t id_ = 0;
  LinkEnd link_end_;
  Place places_[kLanes];
};

/// What a socket does with a connection: it asks the framed layer if there is one, otherwise TCP.
class Calls {
 public:
  Calls(Host& host, TestLinks& links) : host_(host), framed_(links.framed()) {}
  [[nodiscard]] std::size_t readable(tcp::Tcb& tcb);
  std::string read(tcp::Tcb& tcb, std::size_t most);
  std::size_t write(tcp::Tcb& tcb, std::span<const std::byte> bytes, bool more = false, bool urgent = false);
  [[nodiscard]] bool at_eof(tcp::Tcb& tcb);
  void shutdown_send(tcp::Tcb& tcb);
  void close(tcp::Tcb& tcb);
  void abort(tcp::Tcb& tcb);

 private:
  Host& host_;
  FramedTcp& framed_;
};

struct FramedWorldConfig {
  std::uint64_t seed = 1;
  std::array<SideConfig, 2> side;
  bypass::sim::Impairment wire{};
  std::uint32_t tcp_window = 64U << 10;
  bool cable = true;
  unsigned kills = 0;
  double cut_chance = 0.5, leave_chance = 0;
};

class FramedWorld {
 public:
  explicit FramedWorld(const FramedWorldConfig& config);

  /// Side 0 connects to side 1, which accepts. False: no connection came.
  bool open();
  /// Listening without accepting; connecting without waiting.
  void listen();
  void connect();
  bool accept();
  /// Goes on until `done` holds. It is asked after every turn.
  bool run_until(const std::function<bool()>& done, Duration limit = 60s);
  void run_for(Duration duration) {
    run_until([] { return false; }, duration);
  }
  /// Ends all connections. Returns what is left over; empty: nothing.
  std::string leftovers();

  std::string read(std::size_t side, std::size_t most = SIZE_MAX) { return calls(side).read(*tcb[side], most); }
  /// Writes the whole text, however long it takes.
  void write(std::size_t side, const std::string& text);
  /// Receives that many bytes, or the bytes that arrive within 10 s.
  std::string receive(std::size_t side, std::size_t bytes);
  [[nodiscard]] Framed* framed(std::size_t side) {
    return tcb[side] != nullptr && FramedTcp::has(*tcb[side]) ? &FramedTcp::of(*tcb[side]) : nullptr;
  }
  Calls calls(std::size_t side) { return {host(side), *links_[side]}; }
  Host& host(std::size_t side) { return world_.host(side); }
  TestLinks& links(std::size_t side) { return *links_[side]; }
  World& world() { return world_; }
  bypass::sim::Wire& wire() { return world_.wire(); }
  void kill_link() { cable_->kill(); }
  /// The state of both sides, for the message of a failure.
  [[nodiscard]] std::string describe();
  [[nodiscard]] std::string problem() const { return problem_; }

  tcp::Tcb* tcb[2] = {};
  tcp::Listener* listener = nullptr;
  char user[2] = {};  // events come under these addresses

 private:
  void turn();

  FramedWorldConfig config_;
  World world_;
  bypass::sim::Random random_;
  std::unique_ptr<TestLinks> links_[2];
  std::shared_ptr<sim::Cable> cable_;
  std::uint32_t link_id_ = 0;
  unsigned kills_ = 0;
  std::string problem_;
};

}  // namespace bypass::fastpath::test
