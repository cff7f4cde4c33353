// Fuzzer: one stack, its program and its peers, all drawn from one seed, in virtual time.
//
// A step is one of: a burst of segments whose numbers lie near those of a live connection, a call of tcp::Engine, a
// loss of memory or of frames, time that passes, a death inside the lock. After each step all rules of invariants.cc
// hold. The bytes on the wire and those that are read are functions of their sequence numbers, so each is checked where
// it appears. At the end everything is closed, and nothing may be left: no connection, no timer, no block of memory, no
// frame.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "stack/tcp/core.h"
#include "stack/tcp/input/segment.h"
#include "stack/world.h"

namespace bypass::test {

class Fuzzer {
 public:
  explicit Fuzzer(std::uint64_t seed);

  /// Takes that many steps, then ends everything. Returns what was wrong and at which step; empty: nothing.
  std::string run(unsigned steps);

  /// The values near which a segment's numbers are drawn.
  struct Flow {
    IpAddress remote{};
    std::uint16_t local_port = 80, remote_port = 1000;
    tcp::SeqNum rcv_nxt{}, rcv_adv{}, snd_una{}, snd_nxt{};
    std::uint32_t ts_recent = 0, ts_echo = 0;
    bool timestamps = false, sack = false, opening = false;
  };

 private:
  // --- fuzzer.cc: the step, the rules, the end
  void step();
  void check();
  void fail(const std::string& what);
  void end();
  void pass_time();
  void change_memory();
  void rebuild();
  void note(const char* what) {
    if (tracing_) trace(what);
  }
  void trace(const char* what);

  // --- fuzzer_wire.cc: the peers
  Flow stranger();
  Flow pick_flow();
  void send_segments();
  sim::Bytes segment();
  void add_options(const Flow& flow, bool syn, std::vector<std::uint8_t>& options);
  tcp::SeqNum near(tcp::SeqNum low, tcp::SeqNum high);
  void send_icmp();
  void pump();
  void take_frame(const sim::Bytes& frame);
  void check_text(const tcp::TcpHeader& header, std::uint32_t remote, std::span<const std::byte> text);
  void know(const tcp::Tcb& tcb);
  void answer_arp(const sim::Bytes& frame);

  // --- fuzzer_calls.cc: the program
  struct Socket {
    tcp::Tcb* tcb = nullptr;
    std::optional<tcp::Room> room;  // reserved and not committed
  };
  void call();
  void call_of_socket(Socket& socket);
  void call_of_engine();
  void take(tcp::Tcb& tcb);
  void open_socket();
  void accept();
  void change_listeners();
  void reserve(Socket& socket);
  void commit(Socket& socket);
  void read(Socket& socket);
  void close(Socket& socket, bool abort);
  tcp::Options options();
  tcp::Engine& engine() { return host_.tcp(); }
  Context& ctx() { return host_.ctx(); }
  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }
  bool chance(double probability) { return random_.chance(probability); }

  std::uint64_t seed_;
  sim::Random random_;
  World world_;
  Host& host_;
  sim::SimPort& probe_;
  Instant now_{};
  bool tracing_;
  std::optional<Flow> opening_;  // whose SYN-ACK was the latest: it may have been a cookie
  bool answers_ = true;          // the neighbours answer ARP
  unsigned step_ = 0;
  std::string failure_;
  std::vector<Socket> sockets_;
  std::vector<tcp::Listener*> listeners_;
  std::vector<void*> hogs_;      // blocks that somebody else has
  std::vector<Packet*> frames_;  // frames that somebody else has
  using FlowName = std::tuple<std::uint32_t, std::uint16_t, std::uint16_t>;
  std::map<FlowName, std::array<std::uint32_t, 8>> first_bytes_;  // numbers of them
};

/// The byte of the peer's stream with that sequence number, and the byte of the host's stream with that offset.
inline std::byte peer_byte(std::uint32_t seq) {
  return static_cast<std::byte>(seq * 2654435761U >> 24);
}
inline std::byte host_byte(std::uint64_t offset) {
  return static_cast<std::byte>(static_cast<std::uint32_t>(offset) * 2246822519U >> 24);
}

}  // namespace bypass::test
