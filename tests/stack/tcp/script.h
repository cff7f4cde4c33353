// Script: a packet script in virtual time. One host under test, 10.9.0.1; the script is its peer, 10.9.0.2,
// segment by segment, and its program, call by call.
//
//   Script s;
//   s.establish();
//   s.write(1000).expect(seg().seq(1).len(1000));
//   s.at(200ms).expect(seg().seq(1).len(1000)).nothing_more();
//
// Numbers are relative: each side's SYN is 0, its first byte 1. Time starts at 0 ms; at() goes on to a moment
// and lets every timer fire on its way.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "stack/tcp/core.h"
#include "stack/tcp/input/segment.h"
#include "stack/world.h"

namespace bypass::test {

/// A segment to send, or a pattern for a sent one. Only the fields that are named are compared.
struct Seg {
  std::optional<std::uint8_t> flags_;
  std::optional<std::int64_t> seq_, ack_;
  std::optional<std::uint32_t> len_, window_;
  std::optional<std::uint16_t> mss_;
  std::optional<std::uint8_t> scale_;
  std::optional<bool> sack_permitted_;
  std::optional<std::uint32_t> ts_value_, ts_echo_;
  std::vector<std::pair<std::int64_t, std::int64_t>> sack_;
  std::vector<std::uint8_t> raw_options_;
  std::string text_;
  std::uint16_t port_ = 0;  // of the host, if not the connection's

  Seg& flag(std::uint8_t f) {
    flags_ = static_cast<std::uint8_t>(flags_.value_or(0) | f);
    return *this;
  }
  Seg& syn() { return flag(tcp::kSyn); }
  Seg& fin() { return flag(tcp::kFin); }
  Seg& rst() { return flag(tcp::kRst); }
  Seg& push() { return flag(tcp::kPsh); }
  Seg& seq(std::int64_t v) { return seq_ = v, *this; }
  Seg& ack(std::int64_t v) { return ack_ = v, flag(tcp::kAck); }
  Seg& len(std::uint32_t v) { return len_ = v, *this; }
  Seg& text(std::string v) { return len_ = static_cast<std::uint32_t>(v.size()), text_ = std::move(v), *this; }
  Seg& window(std::uint32_t v) { return window_ = v, *this; }  // as the wire shows it
  Seg& mss(std::uint16_t v) { return mss_ = v, *this; }
  Seg& scale(std::uint8_t v) { return scale_ = v, *this; }
  Seg& sack_ok(bool v = true) { return sack_permitted_ = v, *this; }
  Seg& ts(std::uint32_t value, std::uint32_t echo) { return ts_value_ = value, ts_echo_ = echo, *this; }
  Seg& echo(std::uint32_t v) { return ts_echo_ = v, *this; }
  Seg& sack(std::int64_t begin, std::int64_t end) { return sack_.emplace_back(begin, end), *this; }
  Seg& raw(std::vector<std::uint8_t> v) { return raw_options_ = std::move(v), *this; }
  Seg& to_port(std::uint16_t v) { return port_ = v, *this; }
};
inline Seg seg() {
  return {};
}

struct Given {
  StackConfig stack{};
  PortCaps caps{};
  tcp::Options options{};
  std::uint16_t mss = 1000;  // that the script's SYN announces
  bool sack = false, timestamps = false;
  std::optional<std::uint8_t> scale;
  std::uint32_t window = 65535;
  std::size_t buffers = 1024;
  unsigned backlog = 16;
};

class Script {
 public:
  explicit Script(const Given& given = {});
  ~Script();

  // --- The program
  Script& listen();
  Script& connect(std::uint16_t local_port = 0);
  /// The handshake, opened by the script and accepted by the program. Nothing is left to expect.
  Script& establish();
  /// The same, opened by the program.
  Script& establish_active();
  Script& accept();
  Script& write(std::size_t bytes, bool more = false);
  /// Everything readable, as text.
  std::string read(std::size_t most = std::size_t{1} << 30);
  Script& shutdown_send();
  Script& close();
  Script& abort();
  Script& abort_orphans();
  Script& set_options(const tcp::Options& options);
  /// Sets TCP_NODELAY, or ends TCP_CORK, where that changes nothing.
  Script& push();

  // --- The wire
  Script& inject(const Seg& segment);
  /// Several segments in one burst.
  Script& burst(std::initializer_list<Seg> segments);
  Script& expect(const Seg& segment);
  /// The next segment that expect() sees carries no PSH. expect() itself does not look at PSH.
  Script& no_push();
  Script& nothing_more();
  Script& ignore_all();  // forgets what was sent so far

  // --- Time
  Script& at(Duration since_start);
  /// The link was down and is up again: Stack::on_link_up.
  Script& link_up();
  /// A host announces that address (gratuitous ARP).
  Script& announce(const char* address = "10.9.0.2") { return announce_all({address}); }
  /// Several of them in one burst.
  Script& announce_all(std::initializer_list<const char*> addresses);
  Script& wait(Duration duration) { return at(now_since_start() + duration); }
  [[nodiscard]] Duration now_since_start() const { return world_.now() - Instant{}; }

  // --- Looking
  [[nodiscard]] tcp::State state() { return host_.tcp().state(*tcb_); }
  [[nodiscard]] Error error() { return host_.tcp().error(*tcb_); }
  [[nodiscard]] tcp::Info info() { return host_.tcp().info(*tcb_); }
  std::uint16_t events() { return host_.take_events(this); }
  [[nodiscard]] std::size_t connections() { return engine().impl().tcbs.size(); }
  tcp::Engine& engine() { return host_.tcp(); }
  StackCounters& counters() { return host_.counters(); }
  Host& host() { return host_; }
  World& world() { return world_; }
  Context& ctx() { return host_.ctx(); }
  tcp::Tcb* tcb() { return tcb_; }
  tcp::Listener* listener() { return listener_; }
  /// A later connection of the same script begins: other ports, other numbers.
  void new_peer(std::uint16_t peer_port, std::uint32_t peer_iss = 1000);
  std::uint16_t local_port = 80, peer_port = 40000;
  std::uint32_t peer_iss = 1000;
  std::uint32_t host_iss = 0;  // learned from the host's SYN

 private:
  struct Sent {
    tcp::TcpHeader header;
    tcp::SegmentOptions options;
    std::string text;
    Instant at;
    std::string describe(const Script& script) const;
  };
  void pump();
  void take_frame(const sim::Bytes& frame);
  void answer_arp(const sim::Bytes& frame);
  sim::Bytes build(const Seg& segment) const;
  void compare(const Seg& want, const Sent& got);
  void check();

  Given given_;
  World world_;
  Host& host_;
  sim::SimPort& probe_;
  std::deque<Sent> sent_;
  tcp::Listener* listener_ = nullptr;
  tcp::Tcb* tcb_ = nullptr;
};

/// `n` bytes of a pattern by stream offset.
std::string pattern(std::size_t offset, std::size_t n);

}  // namespace bypass::test
